"""What an output may be and what it replaces, in every format that is written."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.rivals import FOLDERS, FORMATS, OPTIONS, output_of, samples_of, write

import penstock as ps
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.reshape.merge import merge
from penstock.store import LocalStore, MemoryStore, outputs
from penstock.store.outputs import claimed, require_other, require_outside
from penstock.testing.datasets import files_in
from penstock.testing.faults import FaultStore


def datasets(root: Path) -> dict[str, bytes]:
    """Two datasets to merge, a home with a third one in it, and things that are nobody's."""
    for name in ("a", "b", "home/data", "big"):
        write(root / name, "mds", name)
    (root / "home" / "thesis.tex").write_bytes(b"mine")
    return files_in(root)


@pytest.mark.parametrize("format", FOLDERS)
def test_a_folder_with_anything_else_in_it_is_not_replaced(tmp_path: Path, format: str) -> None:
    before = datasets(tmp_path)
    with pytest.raises(ConfigError) as caught:
        write(tmp_path / "home", format, "new", overwrite=True)
    assert files_in(tmp_path) == before
    assert "thesis.tex" in str(caught.value) or format == "flat-tokens"


@pytest.mark.parametrize("format", FOLDERS)
def test_strangers_in_a_dataset_are_named(tmp_path: Path, format: str) -> None:
    write(tmp_path / "set", format, "old")
    write(tmp_path / "set", format, "older", overwrite=True)
    for name in ("1.txt", "2.txt", "3.txt", "4.txt", "sub/5.txt"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"mine")
    before = files_in(tmp_path)
    with pytest.raises(ConfigError, match=r"found 1\.txt, 2\.txt, 3\.txt and 2 more"):
        write(tmp_path / "set", format, "new", overwrite=True)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("format", FOLDERS)
def test_what_appears_before_the_commit_is_kept(tmp_path: Path, format: str) -> None:
    write(tmp_path / "set", format, "old")
    writer = ps.create(tmp_path / "set", format=format, overwrite=True, **OPTIONS[format])
    for sample in samples_of(format, "new"):
        writer.write(sample)
    (tmp_path / "set" / "notes").write_bytes(b"mine")
    before = {name: data for name, data in files_in(tmp_path).items() if name.startswith("set/")}
    with pytest.raises(ConfigError, match="notes"):
        writer.commit()
    assert {name: data for name, data in files_in(tmp_path).items() if not name.endswith(".penstock")} == {
        name: data for name, data in before.items() if not name.endswith(".penstock")
    }


def test_what_appears_after_the_exchange_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "set", "mds", "old")
    old = files_in(tmp_path / "set")
    from penstock.store import _local_staged

    exchange = _local_staged.exchange

    def late(first: str, second: str) -> None:
        exchange(first, second)
        Path(first, "notes").write_bytes(b"mine")

    monkeypatch.setattr(_local_staged, "exchange", late)
    write(tmp_path / "set", "mds", "new", overwrite=True)
    (kept,) = (name for name in os.listdir(tmp_path) if name != "set")
    assert kept.startswith("set.kept-")
    assert files_in(tmp_path / kept) == old | {"notes": b"mine"}
    assert kept in caplog.text
    assert "notes" in caplog.text


@pytest.mark.parametrize("format", FORMATS)
def test_a_link_is_followed_and_stays(tmp_path: Path, format: str) -> None:
    (tmp_path / "big").mkdir()
    write(output_of(tmp_path / "big", format), format, "old")
    (tmp_path / "here").mkdir()
    for file in sorted((tmp_path / "big").iterdir()):
        if not file.name.endswith(".penstock"):
            (tmp_path / "here" / file.name).symlink_to(file)
    links = sorted(os.listdir(tmp_path / "here"))
    write(output_of(tmp_path / "here", format), format, "new", overwrite=True)
    assert sorted(os.listdir(tmp_path / "here")) == links
    assert all((tmp_path / "here" / name).is_symlink() for name in links)
    (tmp_path / "plain").mkdir()
    write(output_of(tmp_path / "plain", format), format, "new")
    assert files_in(tmp_path / "big") == files_in(tmp_path / "plain")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_links_that_lead_nowhere_are_refused(tmp_path: Path, format: str, overwrite: bool) -> None:
    path = output_of(tmp_path, format)
    named = Path(f"{path}.bin") if format == "megatron" else path
    named.symlink_to("nowhere")
    with pytest.raises(ConfigError):
        write(path, format, "new", overwrite=overwrite)
    named.unlink()
    named.symlink_to("other")
    (tmp_path / "other").symlink_to(named.name)
    with pytest.raises(ConfigError):
        write(path, format, "new", overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == sorted(["other", named.name])


@pytest.mark.parametrize("format", FOLDERS)
def test_places_are_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    home = tmp_path / "home"
    write(home / "here", format, "old")
    before = files_in(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "here")
    for place in (".", "/", "/proc", str(home), str(tmp_path), "..", str(home / "here")):
        with pytest.raises(ConfigError):
            write(Path(place), format, "new", overwrite=True)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("format", FORMATS)
def test_in_a_sticky_folder_files_of_others_are_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Said before any work: the system says so at the end of it."""
    folder = tmp_path / "all"
    folder.mkdir()
    target = output_of(folder, format)
    write(target, format, "old")
    before = files_in(tmp_path)
    folder.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="sticky"):
        ps.create(target, format=format, overwrite=True, **OPTIONS[format])
    assert files_in(tmp_path) == before
    folder.chmod(0o777)
    write(target, format, "new", overwrite=True)
    assert files_in(tmp_path) != before


def test_a_conversion_in_a_sticky_folder_says_so_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "all/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "mds", name)
    (tmp_path / "all").chmod(0o1777)
    before = files_in(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="sticky"):
        ps.convert(tmp_path / "a", tmp_path / "all" / "b", to="mds", group_rows=1, overwrite=True)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("format", FOLDERS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_no_folder(tmp_path: Path, format: str, overwrite: bool) -> None:
    (tmp_path / "set").write_bytes(b"mine")
    with pytest.raises(ConfigError):
        write(tmp_path / "set", format, "new", overwrite=overwrite)
    assert files_in(tmp_path) == {"set": b"mine"}


@pytest.mark.parametrize("format", sorted(set(FORMATS) - set(FOLDERS)))
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_no_file(tmp_path: Path, format: str, overwrite: bool) -> None:
    path = output_of(tmp_path, format)
    folder = Path(f"{path}.bin") if format == "megatron" else path
    (folder / "in").mkdir(parents=True)
    with pytest.raises(ConfigError):
        write(path, format, "new", overwrite=overwrite)
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")] == [folder.name, f"{folder.name}/in"]


def test_indexes_of_others_are_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a", "megatron", "old")
    write(tmp_path / "b.jsonl", "jsonl", "old")
    before = files_in(tmp_path)
    with pytest.raises(ConfigError):
        write(tmp_path / "a.jsonl", "jsonl", "new", overwrite=True)
    with pytest.raises(ConfigError):
        write(tmp_path / "b", "megatron", "new", overwrite=True)
    assert files_in(tmp_path) == before


def test_merge_and_convert_leave_their_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datasets(tmp_path)
    a, b, home = tmp_path / "a", tmp_path / "b", tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: merge([a, b], home, overwrite=True),
        lambda: merge([a, b], ".", overwrite=True),
        lambda: merge([a, b], a, overwrite=True),
        lambda: merge([a, b], a / "sub"),
        lambda: ps.convert(home / "data", home, to="mds", overwrite=True),
        lambda: ps.convert(home / "data", home, to="csv", overwrite=True),
        lambda: ps.convert(a, a / "x.jsonl", to="jsonl"),
        lambda: ps.create("home", format="mds", overwrite=True, columns={"text": "str"}),
    ):
        with pytest.raises(ConfigError):
            call()
        assert files_in(tmp_path) == before


def test_inputs_are_known_by_any_name(tmp_path: Path) -> None:
    one = tmp_path / "one.jsonl"
    one.write_bytes(b"{}\n")
    (tmp_path / "link.jsonl").symlink_to(one)
    os.link(one, tmp_path / "hard.jsonl")
    for name in ("one.jsonl", "link.jsonl", "hard.jsonl", "./x/../one.jsonl"):
        with pytest.raises(ConfigError, match="would replace an input"):
            require_other([str(one)], str(tmp_path / name))
    with pytest.raises(ConfigError, match="would replace an input"):
        require_other([str(one)], str(tmp_path / "out"), str(one))
    with pytest.raises(ConfigError, match="contains an input"):
        require_other([str(one)], str(tmp_path))
    require_other([str(one)], str(tmp_path / "two.jsonl"))


def test_the_name_of_a_megatron_pair_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`convert m m --to mds` made a folder of that name, and `m` meant it from then on."""
    monkeypatch.chdir(tmp_path)
    with ps.create("m", format="megatron", token_bytes=2) as writer:
        writer.write({"tokens": [1, 2, 3]})
    for name in ("m", "./m", str(tmp_path / "m")):
        with pytest.raises(ConfigError, match="one of the inputs"):
            ps.convert("m", name, to="mds")
    assert not (tmp_path / "m").exists()
    (tmp_path / "m").mkdir()
    ps.convert("m.idx", "m/out", to="mds")


def test_an_input_that_can_not_be_looked_at_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second name of an input is known by asking for both: where the disk does not say, nothing is written."""
    one, hard, stat = tmp_path / "one.jsonl", str(tmp_path / "hard.jsonl"), os.stat
    one.write_text("{}\n")
    os.link(one, hard)

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if path == hard:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return stat(path, **options)

    monkeypatch.setattr(outputs.os, "stat", refuse)
    with pytest.raises(OSError, match=r"hard\.jsonl"):
        outputs.require_other([str(one)], hard)


def test_a_folder_that_is_searched_may_hold_the_output(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    require_outside([str(tmp_path / "texts")], str(tmp_path / "texts" / "x.pbin"))
    write(tmp_path / "set", "mds", "old")
    with pytest.raises(ConfigError, match="is inside an input"):
        require_outside([str(tmp_path / "set")], str(tmp_path / "set" / "x.pbin"))


# --- one writer an output ----------------------------------------------------------------------------------------


def in_a_process(work: Callable[..., Any], *args: Any) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    process.start()
    return process


@pytest.mark.parametrize("format", FORMATS)
def test_the_second_writer_learns_who_is_the_first(tmp_path: Path, format: str) -> None:
    path = output_of(tmp_path, format)
    first = ps.create(path, format=format, **OPTIONS[format])
    with pytest.raises(PrepareError, match=f"process {os.getpid()} on {socket.gethostname()}"):
        ps.create(path, format=format, **OPTIONS[format])
    first.abort()
    assert os.listdir(tmp_path) == []
    write(path, format, "new")


@pytest.mark.parametrize("format", FORMATS)
def test_a_killed_writer_blocks_nobody(tmp_path: Path, format: str) -> None:
    path = output_of(tmp_path / "new", format)

    def die() -> None:
        writer = ps.create(path, format=format, **OPTIONS[format])
        writer.write(samples_of(format, "old")[0])
        os.kill(os.getpid(), signal.SIGKILL)

    process = in_a_process(die)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    write(path, format, "new")
    (tmp_path / "plain").mkdir()
    write(output_of(tmp_path / "plain", format), format, "new")
    assert files_in(tmp_path / "new") == files_in(tmp_path / "plain")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    ready, end = multiprocessing.Pipe()

    def hold() -> None:
        held = LocalStore().claim(path)
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        end.send(held is not None)
        time.sleep(60)

    process = in_a_process(hold)
    assert ready.poll(60)
    with pytest.raises(PrepareError):
        LocalStore().claim(path)
    process.kill()
    process.join()
    LocalStore().claim(path).release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("store", [LocalStore(), MemoryStore()], ids=["local", "memory"])
def test_claims(tmp_path: Path, store: Any) -> None:
    path = str(tmp_path / "deep" / "set")
    held = store.claim(path)
    for shared in (False, True):
        with pytest.raises(PrepareError):
            store.claim(path, shared=shared)
    held.release()
    held.release()
    assert list(tmp_path.iterdir()) == []
    path = str(tmp_path / "set")
    first, second = store.claim(path, shared=True), store.claim(path, shared=True)
    with pytest.raises(PrepareError):
        store.claim(path)
    first.release()
    with pytest.raises(PrepareError):
        store.claim(path)
    second.release()
    store.claim(path).release()
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_writer_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    held = LocalStore().claim(path)
    del held
    LocalStore().claim(path).release()


def test_a_verb_shares_with_its_own_writers_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    with claimed(LocalStore(), path) as store:
        store.claim(path).release()
        for _ in range(2):
            with pytest.raises(PrepareError):
                LocalStore().claim(path)
    assert os.listdir(tmp_path) == []


def test_a_verb_shares_by_every_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    path = str(tmp_path / "link" / "set")
    with claimed(LocalStore(), path) as store:
        store.claim(path).release()
        for other in (path, str(tmp_path / "folder" / "set")):
            with pytest.raises(PrepareError):
                claimed(LocalStore(), other).__enter__()


def test_a_lock_survives_faults_without_litter(tmp_path: Path) -> None:
    total = 0
    for n in range(1, 40):
        store = FaultStore(n)
        with contextlib.suppress(OSError, PenstockError):
            store.claim(str(tmp_path / "deep" / "set")).release()
        total = max(total, store.operations)
        assert list(tmp_path.iterdir()) == [], n
        LocalStore().claim(str(tmp_path / "deep" / "set")).release()
    assert total >= 5

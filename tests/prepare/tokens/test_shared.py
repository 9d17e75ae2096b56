"""Shared work: token files in a folder, and shares of it, have the same bytes whoever does them, on every store."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.internals import (
    STALE_WORK,
    PartMeta,
    PartName,
    Place,
    SharedWork,
    array_expression,
    current,
    cut_files,
    encode_end,
    has_work,
    place_of,
    put,
    replace,
    status_of,
    work_within,
)
from tests.internals import FolderMark as Mark
from tests.internals import compose_client as _client
from tests.internals import replaced_mark as mark_path
from tests.prepare.conftest import TEXTS, expected_tokens, names_in, write_lines
from tests.shared_work import finish_part
from tests.store.between import between

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError
from penstock.prepare import PackProgress, PackReport, pack
from penstock.store import LocalStore, MemoryStore
from penstock.testing.datasets import files_in

Pack = Callable[..., PackReport]
TASK_BYTES = 1500
FILE_TOKENS = 2000


@pytest.fixture
def share(tmp_path: Path, corpus: Path, bpe2: Path) -> Pack:
    """`pack` of the corpus into a folder of token files."""

    def run(output: Any = None, inputs: Any = None, **options: Any) -> PackReport:
        how = {"tokenizer": bpe2, "executor": "inline", "oracle_bytes": 500, "task_bytes": TASK_BYTES}
        given = output or f"{tmp_path}/out/"
        return pack(inputs or corpus, given, **({"file_tokens": FILE_TOKENS} | how | options))

    return run


@pytest.fixture
def whole(tmp_path: Path, share: Pack) -> dict[str, bytes]:
    """The files of a run that nobody shares."""
    report = share(f"{tmp_path}/whole/")
    assert report.tasks > 5
    assert report.documents == 150
    found = files_in(tmp_path / "whole")
    assert len([name for name in found if name.endswith(".pbin")]) > 3
    return found


EOS_IDS = {"pbin": 0, "megatron": 0, "flat-tokens": None}
"""Format → id of the token that ends each document by default."""


def rows(path: Any) -> list[list[int]]:
    return [row["tokens"].tolist() for row in ps.open(path)]


# --- what is made ----------------------------------------------------------------------------------------------------


def test_the_documents_in_order(tmp_path: Path, whole: dict[str, bytes], bpe2: Path) -> None:
    assert rows(tmp_path / "whole") == expected_tokens(bpe2, TEXTS)
    index = json.loads(whole["index.json"])
    assert index["format"] == "pbin"
    counts = [one["tokens"] for one in index["files"]]
    ends = np.cumsum(counts)
    borders = np.cumsum([len(row) for row in expected_tokens(bpe2, TEXTS)])
    expected = sorted(
        {int(borders[np.searchsorted(borders, goal)]) for goal in range(FILE_TOKENS, ends[-1], FILE_TOKENS)}
    )
    assert ends[:-1].tolist() == expected
    assert {name.partition("-")[0] for name in whole} == {"part", "index.json", ".penstock"}
    assert not ps.verify(tmp_path / "whole", depth="full")


@pytest.mark.parametrize("to", ["pbin", "megatron", "flat-tokens"])
def test_every_format(tmp_path: Path, share: Pack, bpe2: Path, to: str) -> None:
    report = share(to=to)
    assert report.manifest is not None
    assert report.manifest.num_tokens == report.tokens
    eos_id = EOS_IDS[to]
    assert rows(tmp_path / "out") == expected_tokens(bpe2, TEXTS, eos_id)
    before = files_in(tmp_path / "out")
    share(to=to, overwrite=True, inputs=write_lines(tmp_path / "b.jsonl", [{"text": "only"}]))
    assert rows(tmp_path / "out") == expected_tokens(bpe2, ["only"], eos_id)
    assert len(files_in(tmp_path / "out")) < len(before)
    assert {name.partition("/")[0].partition("-")[0] for name in names_in(tmp_path / "out")} <= {
        "part",
        "index.json",
        ".penstock",
    }


@pytest.mark.parametrize(
    "options", [{"executor": "processes", "workers": 2}, {"task_bytes": 700}, {"task_bytes": 10**6}]
)
def test_who_does_it_changes_no_byte(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], options: dict[str, Any]
) -> None:
    share(**options)
    assert files_in(tmp_path / "out") == whole


def test_a_folder_by_its_slash_or_because_it_is_there(tmp_path: Path, share: Pack) -> None:
    share(f"{tmp_path}/a/", file_tokens=None)
    (tmp_path / "b").mkdir()
    share(tmp_path / "b", file_tokens=None)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")
    assert len([name for name in files_in(tmp_path / "a") if name.endswith(".pbin")]) == 1
    share(f"{tmp_path}/c.pbin/", file_tokens=None)
    assert (tmp_path / "c.pbin").is_file()


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=8),
    st.integers(1, 60),
)
def test_the_cut_does_not_depend_on_parts(parts: list[list[int]], file_tokens: int) -> None:
    store = MemoryStore()
    names: list[PartName] = []
    for number, lengths in enumerate(parts):
        name = PartName(number, 0, True, len(lengths), sum(lengths), 0, f"{number:016x}")
        staged = store.stage(f"s/{name.path}")
        staged.write(bytes(2 * sum(lengths)))
        meta = PartMeta((), len(lengths), sum(lengths), 0 if lengths else -1, ())
        finish_part(staged, encode_end(np.array(lengths, np.int64), meta))
        names.append(name)
    found = cut_files(names, file_tokens, Place(store, "s"), 2)
    documents = [length for lengths in parts for length in lengths]
    expected: list[list[int]] = [[]]
    tokens, goal = 0, file_tokens
    for length in documents:
        expected[-1].append(length)
        tokens += length
        if tokens >= goal:
            goal = (tokens // file_tokens + 1) * file_tokens
            expected.append([])
    assert [
        [length for one in ranges for length in parts[one.name.task][one.first : one.stop]] for ranges in found
    ] == [one for one in expected if one]


# --- shares ----------------------------------------------------------------------------------------------------------


def test_shares_and_a_finish(tmp_path: Path, share: Pack, whole: dict[str, bytes]) -> None:
    reports = [share(part=(index, 3)) for index in (2, 0, 0)]  # one twice, one never
    assert [report.part for report in reports] == [(2, 3), (0, 3), (0, 3)]
    assert all(report.manifest is None for report in reports)
    assert reports[2].tasks == reports[2].reused_tasks
    assert not (tmp_path / "out/index.json").exists()
    with pytest.raises(PenstockError, match="unfinished"):
        ps.open(tmp_path / "out")
    missing = share(finish=True, no_work=True)
    assert (missing.missing, missing.manifest) == ((1,), None)
    share(part=(1, 3))  # all parts are there now: it assembles its token files too
    missing = share(finish=True, no_work=True)
    assert set(missing.missing) == {0, 2}
    for index in missing.missing:
        share(part=(index, 3))
    done = share(finish=True, no_work=True)
    assert (done.missing, done.documents) == ((), 150)
    assert files_in(tmp_path / "out") == whole
    for again in (share(part=(1, 3)), share(finish=True), share(finish=True, no_work=True)):
        assert again.was_complete
    with pytest.raises(ConfigError, match="the output exists"):
        share()
    for other in ({"part": (1, 3)}, {"finish": True}):
        with pytest.raises(ConfigError, match="the output exists"):
            share(file_tokens=1000, **other)
    assert files_in(tmp_path / "out") == whole


def test_a_share_tells_the_bytes_of_its_own(share: Pack, corpus: Path) -> None:
    seen: list[PackProgress] = []
    sizes = [share(part=(index, 3), progress=seen.append).input_bytes for index in range(3)]
    assert sum(sizes) == corpus.stat().st_size
    assert min(sizes) > 0
    assert sizes[2] == seen[-1].input_bytes == seen[-1].total_bytes


def test_a_finish_does_what_is_missing(tmp_path: Path, share: Pack, whole: dict[str, bytes]) -> None:
    share(part=(1, 3))
    report = share(finish=True)
    assert (report.documents, report.missing) == (150, ())
    assert 0 < report.reused_tasks < report.tasks
    assert files_in(tmp_path / "out") == whole


def test_shares_of_one_file(tmp_path: Path, share: Pack) -> None:
    one = {"file_tokens": None}
    share(tmp_path / "whole.pbin", **one)
    share(tmp_path / "out.pbin", part=(0, 2), **one)
    assert share(tmp_path / "out.pbin", finish=True, no_work=True, **one).missing == (1,)
    share(tmp_path / "out.pbin", part=(1, 2), **one)
    assert share(tmp_path / "out.pbin", finish=True, no_work=True, **one).documents == 150
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "whole.pbin").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [
        "corpus.jsonl",
        *("out.pbin", "out.pbin.penstock", "whole.pbin", "whole.pbin.penstock"),
    ]


def test_two_finishers(tmp_path: Path, share: Pack, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    share(part=(0, 2))
    begin = SharedWork.begin
    seen: list[PackReport] = []

    def meanwhile(work: SharedWork, plan: Any, tasks: int) -> None:
        begin(work, plan, tasks)
        monkeypatch.undo()
        seen.append(share(finish=True))

    monkeypatch.setattr(SharedWork, "begin", meanwhile)
    report = share(finish=True)
    assert report.documents == seen[0].documents == 150
    assert files_in(tmp_path / "out") == whole


FINISHER = """
import sys, time
from pathlib import Path
from penstock.prepare import pack
corpus, output, tokenizer, root = sys.argv[1:]
def held(now):
    Path(root, "writing").touch()
    while not Path(root, "go").exists():
        time.sleep(0.01)
how = {"executor": "inline", "oracle_bytes": 500, "task_bytes": 1500, "finish": True, "progress": held}
pack(corpus, output, tokenizer=tokenizer, **how)
"""


@pytest.fixture
def finisher(tmp_path: Path, share: Pack, corpus: Path, bpe2: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A finisher of `out.pbin` that writes it, until there is a file `go`."""
    share(tmp_path / "whole.pbin", file_tokens=None)
    share(tmp_path / "out.pbin", file_tokens=None, part=(0, 2))
    words = [sys.executable, "-c", FINISHER, *map(str, (corpus, tmp_path / "out.pbin", bpe2, tmp_path))]
    with subprocess.Popen(words) as running:
        while not (tmp_path / "writing").exists():
            assert running.poll() is None
            time.sleep(0.01)
        yield running
        (tmp_path / "go").touch()


@pytest.mark.parametrize("killed", [False, True])
def test_two_finishers_of_one_file(
    tmp_path: Path, share: Pack, finisher: Any, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    def waits(seconds: float) -> bool:
        assert (tmp_path / "go").exists() or not (tmp_path / "out.pbin").exists()
        if killed:
            finisher.kill()
            finisher.wait()
        (tmp_path / "go").touch()
        time.sleep(seconds)
        return False

    replace(monkeypatch, "wait_for_others", waits)
    report = share(tmp_path / "out.pbin", file_tokens=None, finish=True)
    assert (report.documents, report.was_complete) == (150, not killed)
    assert (finisher.wait() == 0) == (not killed)
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "whole.pbin").read_bytes()
    left = {"corpus.jsonl", "go", "writing", "out.pbin", "out.pbin.penstock", "whole.pbin", "whole.pbin.penstock"}
    assert set(os.listdir(tmp_path)) == left


def test_a_finisher_of_another_plan_and_another_writer_are_refused(
    tmp_path: Path, share: Pack, finisher: Any, corpus: Path
) -> None:
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --eos"):
        share(tmp_path / "out.pbin", file_tokens=None, finish=True, eos="^")
    with pytest.raises(PrepareError, match="another run is writing this output"):
        share(tmp_path / "out.pbin", file_tokens=None)
    with pytest.raises(PrepareError, match="another run is writing this output"):
        ps.create(tmp_path / "out.pbin", format="pbin", token_bytes=2)
    (tmp_path / "go").touch()
    assert finisher.wait() == 0
    held = ps.create(tmp_path / "b.pbin", format="pbin", token_bytes=2)
    with pytest.raises(PrepareError, match="another run is writing this output"):
        share(tmp_path / "b.pbin", file_tokens=None, finish=True)
    held.abort()


def test_finishers_of_one_folder_at_once(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], corpus: Path, bpe2: Path
) -> None:
    script = FINISHER.replace("while not", "while False and not").replace('"finish"', '"file_tokens": 2000, "finish"')
    words = [sys.executable, "-c", script, *map(str, (corpus, f"{tmp_path}/out/", bpe2, tmp_path))]
    running = [subprocess.Popen(words) for _ in range(2)]
    assert share(finish=True).documents == 150
    assert [one.wait() for one in running] == [0, 0]
    assert files_in(tmp_path / "out") == whole


def test_a_run_killed_between_its_commit_and_its_end(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SharedWork, "clear", lambda self: None)
        share()
    assert work_within(tmp_path / "out").exists()
    assert share().was_complete
    assert files_in(tmp_path / "out") == whole


def test_other_work_is_refused(tmp_path: Path, share: Pack, corpus: Path) -> None:
    share(part=(0, 3))
    with pytest.raises(ConfigError, match=r"--part I/4.*--part I/3"):
        share(part=(1, 4))
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --eos"):
        share(part=(1, 3), eos="^")
    with pytest.raises(ConfigError, match="unfinished work for this output differs: --file-tokens"):
        share(finish=True, file_tokens=5)
    with pytest.raises(ConfigError, match="restart"):
        share(part=(1, 3), restart=True)
    with pytest.raises(ConfigError, match="--finish"):
        share(no_work=True)
    with pytest.raises(ConfigError, match="the part is out of range"):
        share(part=(3, 3))
    assert share(restart=True).reused_tasks == 0


@pytest.mark.parametrize("output", ["out/", "out.pbin"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_share_that_looked_before_the_end_and_began_after_it(
    tmp_path: Path, share: Pack, corpus: Path, output: str, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would begin then nobody would end."""
    how: dict[str, Any] = {"output": f"{tmp_path}/{output}", "overwrite": overwrite}
    how |= {"file_tokens": FILE_TOKENS if output == "out/" else None}
    if overwrite:
        share(**how, inputs=write_lines(tmp_path / "b.jsonl", [{"text": "only"}]))
    share(**how, part=(0, 2))
    opened = current("open_work_of_pack")

    def after_the_end(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        share(**how, finish=True)
        return opened(*given, **options)

    replace(monkeypatch, "open_work_of_pack", after_the_end)
    assert share(**how, part=(1, 2)).was_complete
    assert status_of(place_of(how["output"])).complete
    assert not [one for one in tmp_path.rglob("*") if has_work(one.name)]
    assert not ps.verify(how["output"], depth="full")


def test_workers_that_disagree(tmp_path: Path, share: Pack) -> None:
    share(part=(0, 2))
    [part, *_] = sorted(work_within(tmp_path / "out").glob("*/parts/*/*.part"))
    other = part.with_name(part.name.rpartition("-")[0] + f"-{'0' * 16}.part")
    other.write_bytes(part.read_bytes())
    with pytest.raises(Corrupt, match=r"two workers disagree on task 0.*--restart"):
        share(finish=True)


def test_a_token_file_that_is_gone_is_made_again(tmp_path: Path, share: Pack, whole: dict[str, bytes]) -> None:
    for index in (0, 1, 0):
        share(part=(index, 2))
    [gone, *_] = sorted((tmp_path / "out").glob("part-*.pbin"))
    gone.unlink()
    assert share(finish=True, no_work=True).missing
    share(finish=True)
    assert files_in(tmp_path / "out") == whole


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_what_stands_in_the_folder(tmp_path: Path, share: Pack, corpus: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("precious")
    for options in ({}, {"overwrite": True}, {"part": (0, 2)}, {"restart": True}):
        with pytest.raises(ConfigError, match=r"files that aren't part of its dataset.*thesis\.tex"):
            share(**options)
    assert files_in(tmp_path / "out") == {"thesis.tex": b"precious"}
    with ps.create(tmp_path / "mds", format="mds", columns={"n": "int"}) as writer:
        writer.write({"n": 1})
    before = files_in(tmp_path / "mds")
    with pytest.raises(ConfigError, match="doesn't contain a dataset in this format"):
        share(f"{tmp_path}/mds/", overwrite=True)
    assert files_in(tmp_path / "mds") == before
    with pytest.raises(ConfigError, match="contains an input"):
        share(f"{tmp_path}/", inputs=corpus)


def other_writer(path: Any, **options: Any) -> None:
    """Write another dataset, or be refused."""
    with ps.create(path, format="mds", columns={"n": "int"}, **options) as writer:
        writer.write({"n": 1})


def test_one_writer_an_output(tmp_path: Path, share: Pack, whole: dict[str, bytes]) -> None:
    """While a run is at work in it, or a share, no other is begun; shares of the same plan are."""
    refused: list[str] = []

    def rivals(_: Any) -> None:
        if not refused:
            for rival in (share, lambda: other_writer(tmp_path / "out", overwrite=True)):
                with pytest.raises(PrepareError, match="another run is writing this output") as caught:
                    rival()
                refused.append(caught.value.what)

    share(progress=rivals)
    assert len(refused) == 2
    assert files_in(tmp_path / "out") == whole
    other_writer(tmp_path / "mds")  # and where another writer is at work, none of token files
    with ps.create(tmp_path / "mds", format="mds", columns={"n": "int"}, overwrite=True) as writer:
        with pytest.raises(PrepareError, match="another run is writing this output"):
            share(f"{tmp_path}/mds/", overwrite=True)
        writer.write({"n": 2})
    joined: list[PackReport] = []
    share(f"{tmp_path}/two/", part=(0, 2), progress=lambda _: joined or joined.append(joined_share(share, tmp_path)))
    assert [one.part for one in joined] == [(1, 2)]
    assert not list(tmp_path.glob(".*"))


def joined_share(share: Pack, tmp_path: Path) -> PackReport:
    with pytest.raises(PrepareError, match="another run is writing this output"):
        share(f"{tmp_path}/two/")
    return share(f"{tmp_path}/two/", part=(1, 2))


def test_one_writer_of_an_output_in_a_store(share: Pack) -> None:
    """A writer of the whole folder leaves a mark there before its first file."""
    store = MemoryStore()
    mark = Mark("w", "another host", "/cache", {})
    put(store, mark_path("/out/index.json"), msgspec.json.encode(mark))
    with pytest.raises(PrepareError, match=r"another run is writing this output.*another host"):
        share(Place(store, "/out"))
    assert list(store.files) == [mark_path("/out/index.json")]


@pytest.mark.parametrize("to", ["pbin", "megatron", "flat-tokens"])
def test_only_what_the_old_index_lists_is_removed(tmp_path: Path, share: Pack, corpus: Path, to: str) -> None:
    out, old = tmp_path / "out", write_lines(tmp_path / "old.jsonl", [{"text": "an older text"}])
    share(inputs=old, to=to)
    before = files_in(out)
    share(to=to, overwrite=True)
    assert not [name for name in before.keys() & files_in(out) if name.startswith("part-")]
    new = files_in(out)
    [group] = out.glob("part-00000-*.zarr") if to == "flat-tokens" else [out]
    for make in (
        lambda path: path.write_text("mine"),
        lambda path: path.symlink_to(tmp_path, target_is_directory=True),
        lambda path: path.mkdir(),
    ):
        make(group / "notes")
        with pytest.raises(ConfigError, match=r"files that aren't part of its dataset.*notes"):
            share(inputs=old, to=to, overwrite=True)
        (group / "notes").rename(tmp_path / f"notes{len(list(tmp_path.iterdir()))}")
    assert files_in(out) == new
    (out / "index.json").write_bytes(new["index.json"][:-9])
    with pytest.raises(ConfigError, match="doesn't contain a dataset in this format"):
        share(inputs=old, to=to, overwrite=True)


def test_a_group_that_is_a_link_is_not_emptied(tmp_path: Path, share: Pack, corpus: Path) -> None:
    share(to="flat-tokens")
    [group, *_] = (tmp_path / "out").glob("part-00000-*.zarr")
    group.rename(tmp_path / "elsewhere")
    group.symlink_to(tmp_path / "elsewhere")
    before = files_in(tmp_path / "elsewhere")
    old = write_lines(tmp_path / "old.jsonl", [{"text": "another text"}])
    with pytest.raises(ConfigError, match="files that aren't part of its dataset"):
        share(inputs=old, to="flat-tokens", overwrite=True)
    assert files_in(tmp_path / "elsewhere") == before


@pytest.mark.parametrize(
    ("output", "options", "what"),
    [
        ("out", {"file_tokens": None}, "slash"),
        ("out.pbin", {}, "a single dataset, not a folder"),
        ("out/", {"to": "mds"}, "not a token file format"),
        ("out/", {"file_tokens": 0}, "1 or more"),
    ],
)
def test_names_that_say_two_things(
    tmp_path: Path, share: Pack, output: str, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        share(f"{tmp_path}/{output}", **options)
    assert os.listdir(tmp_path) == ["corpus.jsonl"]


def test_a_fault_or_a_stop_at_any_part(tmp_path: Path, share: Pack, whole: dict[str, bytes]) -> None:
    class Stop(Exception):
        pass

    for most in range(1, 8):
        seen: list[Any] = []

        def stop(now: Any, seen: list[Any] = seen, most: int = most) -> None:
            seen.append(now)
            if len(seen) == most:
                raise Stop

        with pytest.raises(Stop):
            share(progress=stop)
        assert not (tmp_path / "out/index.json").exists()
    assert share().reused_tasks >= 7
    assert files_in(tmp_path / "out") == whole


@pytest.mark.parametrize("call", ["copy_file_range", "link", "fsync"])
@pytest.mark.parametrize("to", ["pbin", "megatron"])
def test_a_full_disk_in_the_middle_of_assembly(
    tmp_path: Path, share: Pack, monkeypatch: pytest.MonkeyPatch, call: str, to: str
) -> None:
    share(f"{tmp_path}/whole/", to=to)
    for index in (0, 1):
        share(part=(index, 2), to=to)
    for one in [*(tmp_path / "out").glob("part-*"), *work_within(tmp_path / "out").glob("*/files/*")]:
        one.unlink()
    original, left = getattr(os, call), [3]

    def full(*given: Any, **how: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            share(finish=True, to=to)
    assert left[0] <= 0
    assert not (tmp_path / "out/index.json").exists()
    share(finish=True, to=to)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def test_killed_between_a_token_file_and_its_mark(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        replace(patch, "put_token_file", killed)
        with pytest.raises(Killed):
            share()
    assert list((tmp_path / "out").glob("part-*.pbin"))
    assert not (tmp_path / "out/index.json").exists()
    with pytest.raises(PenstockError, match="unfinished"):
        ps.open(tmp_path / "out")
    share()
    assert files_in(tmp_path / "out") == whole


def test_a_clock_that_goes_backwards(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [2e9]

    def earlier() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", earlier)
    share(part=(0, 2))
    found = status_of(place_of(str(tmp_path / "out")))
    assert (found.missing_shares, found.rate is None or found.rate >= 0) == ((1,), True)
    share(finish=True)
    assert files_in(tmp_path / "out") == whole


def test_an_empty_input_leaves_nothing(tmp_path: Path, share: Pack) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(Corrupt, match="the file is empty"):
        share(inputs=tmp_path / "empty.jsonl")
    assert not (tmp_path / "out").exists()


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3_bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a place of one's own in an object store."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}"


@pytest.mark.parametrize("to", ["pbin", "megatron", "flat-tokens"])
def test_an_object_store(tmp_path: Path, share: Pack, s3_bucket: str, bpe2: Path, to: str) -> None:
    share(to=to)
    url = f"{s3_bucket}/{to}/out/"
    share(url, part=(1, 2), to=to)
    found = status_of(place_of(url.rstrip("/")))
    assert (found.complete, found.shares, found.missing_shares) == (False, 2, (0,))
    assert share(url, finish=True, no_work=True, to=to).missing == (0,)
    with pytest.raises(PenstockError, match="unfinished"):
        ps.open(url)
    share(url, finish=True, to=to)
    assert remote_files(url) == files_in(tmp_path / "out")
    assert rows(url) == expected_tokens(bpe2, TEXTS, EOS_IDS[to])
    assert share(url, finish=True, to=to).was_complete


@pytest.mark.parametrize("to", ["pbin", "megatron"])
@pytest.mark.parametrize("every", [5, 8])
def test_faults_of_a_store_all_the_way(
    tmp_path: Path, share: Pack, s3_server: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, to: str, every: int
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_BACKOFF_S", "0.01")
    share(to=to)
    kinds: list[Any] = ["503", "unanswered", "cut", "500", "expired"]
    seen: list[str] = []

    def chosen(method: str, path: str) -> Any:
        seen.append(path)
        return kinds[len(seen) // every % len(kinds)] if len(seen) % every == 0 else ""

    with between(s3_server) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        proxy.fault = chosen
        url = f"{s3_bucket}/faults{every}/out/"
        share(url, to=to)
        proxy.fault = lambda method, path: ""
        assert remote_files(url) == files_in(tmp_path / "out")
        assert all(not has_work(name) for name in remote_files(url))
    assert len(seen) > 5 * every


def test_uploads_that_were_never_ended(tmp_path: Path, share: Pack, s3_bucket: str, cli: Any) -> None:
    url = f"{s3_bucket}/out"
    client, prefix = _client("bucket"), url.removeprefix("s3://bucket/")

    def begin(*names: str) -> None:  # as when the answer to the request that opens an upload is lost
        for name in names:
            client.create_multipart_upload(Bucket="bucket", Key=f"{prefix}{name}")

    def still_open() -> list[str]:
        found = client.list_multipart_uploads(Bucket="bucket", Prefix=prefix).get("Uploads", ())
        return sorted(one["Key"].removeprefix(prefix) for one in found)

    share(url + "/", part=(0, 2))
    begin(f"/{work_within(Path())}/x/parts/1.part", "/index.json", "/theirs.bin", "2/index.json")
    assert share(url + "/", finish=True).documents == len(TEXTS)
    theirs = ["/theirs.bin", "2/index.json"]
    assert still_open() == theirs
    begin("/part-00009-0123abcd.pbin", "/index.json")
    assert sorted(json.loads(cli("status", url, "--json")[1])["left_over"]) == [
        f"{url}/index.json",
        f"{url}/part-00009-0123abcd.pbin",
    ]
    assert cli("status", url, "--sweep")[0] == 0
    assert still_open() == theirs
    assert len(ps.open(url)) == len(TEXTS)


def test_one_file_in_an_object_store(tmp_path: Path, share: Pack, s3_bucket: str) -> None:
    one = {"file_tokens": None}
    share(tmp_path / "out.pbin", **one)
    share(f"{s3_bucket}/out.pbin", part=(1, 2), **one)
    share(f"{s3_bucket}/out.pbin", **one)
    place = place_of(f"{s3_bucket}/out.pbin")
    assert place.store.get(place.path) == (tmp_path / "out.pbin").read_bytes()
    assert sorted(remote_files(s3_bucket)) == ["out.pbin", "out.pbin.penstock"]


def test_inputs_in_an_object_store(tmp_path: Path, share: Pack, s3_bucket: str, whole: dict[str, bytes]) -> None:
    lines = (tmp_path / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    table = pyarrow.table({"text": [json.loads(line)["text"] for line in lines[100:]]})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet", row_group_size=20)
    for name, data in (
        ("in/a.jsonl", b"".join(lines[:60])),
        ("in/b.jsonl.gz", gzip.compress(b"".join(lines[60:]))),
        ("in/.hidden.jsonl", b"no JSON"),
        ("t/c.parquet", (tmp_path / "c.parquet").read_bytes()),
    ):
        place = place_of(f"{s3_bucket}/{name}")
        put(place.store, place.path, data)
    both = [f"{s3_bucket}/in/{name}" for name in ("a.jsonl", "b.jsonl.gz")]
    for inputs in ([f"{s3_bucket}/in"], [f"{s3_bucket}/in/[!.]*.jsonl*"], both):
        share(f"{tmp_path}/out/", inputs=inputs, overwrite=True)
        found = files_in(tmp_path / "out")
        assert {name for name in found if name.endswith(".pbin")} == {name for name in whole if name.endswith(".pbin")}
    assert share(f"{tmp_path}/t/", inputs=[f"{s3_bucket}/t"]).documents == 50
    for wrong in ("none", "in/*.txt", "in/none.jsonl"):
        with pytest.raises(NotFound):
            share(f"{tmp_path}/none/", inputs=[f"{s3_bucket}/{wrong}"])


def test_inputs_far_away_are_looked_at_side_by_side(
    tmp_path: Path, share: Pack, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        place = place_of(f"{s3_bucket}/{number}.jsonl")
        put(place.store, place.path, b'{"text": "one"}\n')
    two, describe = threading.Barrier(2), current("describe_input")

    def with_another(*given: Any, **more: Any) -> Any:
        two.wait(60)
        return describe(*given, **more)

    replace(monkeypatch, "describe_input", with_another)
    assert share(inputs=s3_bucket).input_files == 4


def test_an_input_far_away_that_changes_meanwhile(tmp_path: Path, share: Pack, s3_bucket: str) -> None:
    place = place_of(f"{s3_bucket}/a.jsonl")
    put(place.store, place.path, (tmp_path / "corpus.jsonl").read_bytes())

    def change(now: Any) -> None:
        other = place_of(f"{s3_bucket}/a.jsonl")
        put(other.store, other.path, (tmp_path / "corpus.jsonl").read_bytes().replace(b"document 149", b"document 148"))

    with pytest.raises(PenstockError, match="change"):
        share(inputs=place.path, progress=change)
    assert not (tmp_path / "out/index.json").exists()


def remote_files(url: str) -> dict[str, bytes]:
    place = place_of(url)
    start = len(place.path) + 1
    return {path[start:]: place.store.get(path) for path in place.store.list(place.path)}


# --- growth ----------------------------------------------------------------------------------------------------------


def test_small_files_are_runs(tmp_path: Path, share: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each small file one open, the stat of its folder's listing, and no fsync: counted for n and 10 n."""
    calls: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any = ".", *given: Any, **options: Any) -> Any:
            if name == "fsync" or (isinstance(path, str) and f"{tmp_path}/in" in path):
                calls[name] += 1
            return call(path, *given, **options)

        return counted

    for name in ("open", "stat", "lstat", "readlink", "scandir", "listdir", "fsync"):
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    counts: list[dict[str, int]] = []
    for n in (20, 200):
        (tmp_path / f"in{n}").mkdir()
        for number in range(n):
            ending = "jsonl.gz" if number % 2 else "jsonl"
            data = json.dumps({"text": f"text {number}"}).encode() + b"\n"
            path = tmp_path / f"in{n}/{number:04d}.{ending}"
            path.write_bytes(gzip.compress(data) if number % 2 else data)
        calls.clear()
        report = share(f"{tmp_path}/out{n}/", inputs=tmp_path / f"in{n}", task_bytes=1 << 20)
        assert (report.tasks, report.documents) == (1, n)
        counts.append(dict(calls))
    few, many = counts
    assert many["open"] - few["open"] == 180
    assert {name: many[name] - few[name] for name in many if name != "open"} == dict.fromkeys(many.keys() - {"open"}, 0)
    assert many["scandir"] == 1


@pytest.mark.parametrize("held_bytes", [0, 300])
def test_small_files_that_are_not_kept_are_read_again(
    tmp_path: Path, share: Pack, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(30):
        write_lines(tmp_path / f"in/{number:02d}.jsonl", [{"text": f"text {number}"}])
    share(f"{tmp_path}/a/", inputs=tmp_path / "in")
    replace(monkeypatch, "bytes_held_by_pack", held_bytes)
    share(f"{tmp_path}/b/", inputs=tmp_path / "in")
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


# --- status ----------------------------------------------------------------------------------------------------------


def test_status(tmp_path: Path, share: Pack, cli: Any) -> None:
    output = str(tmp_path / "out")
    assert cli("status", output)[0] == 9
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes").write_text("of somebody")
    assert cli("status", str(tmp_path / "folder"))[0] == 9
    share(part=(0, 3))
    head = work_within(tmp_path / "out") / "plan"
    whole = head.read_text()
    for tasks in (-1, 10**18):
        head.write_text(json.dumps(json.loads(whole) | {"tasks": tasks}))
        assert cli("status", output)[0] == Corrupt.exit_status
    head.write_text(whole)
    code, said = cli("status", output, "--json")
    found = json.loads(said)
    assert (code, found["shares"], found["missing_shares"], found["complete"]) == (14, 3, [1, 2], False)
    assert found["done"] + found["missing"] == found["tasks"] > 5
    said = cli("status", output)[1]
    assert "unfinished parts: 1-2 (of 0 to 2)" in said
    assert "next: re-run the same command with --part I/3 for I in 1-2 unless they are running, then" in said
    stale = work_within(tmp_path / "out") / STALE_WORK
    stale.mkdir()
    (stale / "plan-00000").write_text("{}")
    assert cli("status", output, "--sweep")[0] == 14
    assert not stale.exists()
    report = share(finish=True)
    assert report.reused_tasks == found["done"]
    assert cli("status", output)[0] == 0


def test_what_a_straggler_left_is_swept(tmp_path: Path, share: Pack, whole: dict[str, bytes], cli: Any) -> None:
    share()
    (tmp_path / "out/part-00099-01234567.pbin").write_bytes(b"of another plan")
    (work_within(tmp_path / "out") / STALE_WORK / "parts").mkdir(parents=True)
    (work_within(tmp_path / "out") / STALE_WORK / "parts/x").write_bytes(b"late")
    code, said = cli("status", str(tmp_path / "out"))
    assert code == 0
    assert "leftover" in said
    assert cli("status", str(tmp_path / "out"), "--sweep")[0] == 0
    assert files_in(tmp_path / "out") == whole


def test_a_sweep_takes_nothing_else(tmp_path: Path, share: Pack, cli: Any) -> None:
    share(to="flat-tokens")
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "0").write_bytes(b"precious")
    [group, *_] = out.glob("part-00000-*.zarr")
    shutil.copytree(group, out / "part-00099-01234567.zarr")
    (out / "part-00099-01234567.zarr/notes.txt").write_bytes(b"mine")
    (out / "part-00098-01234567.zarr").symlink_to(other)
    (out / "part-notes.txt").write_bytes(b"mine")
    assert cli("status", str(out), "--sweep")[0] == 0
    assert files_in(other) == {"0": b"precious"}
    assert (out / "part-notes.txt").read_bytes() == b"mine"
    assert files_in(out / "part-00099-01234567.zarr") == {"notes.txt": b"mine"}
    assert not (out / "part-00098-01234567.zarr").is_symlink()
    held = LocalStore().claim(str(out))
    assert cli("status", str(out), "--sweep")[0] == PrepareError.exit_status
    held.release()


def test_another_array_where_one_is_unfinished(tmp_path: Path, share: Pack) -> None:
    """What the refusal of a part says is what lets the other array begin."""
    share(part=(0, 3))
    with pytest.raises(ConfigError, match="differs: --file-tokens"):
        share(part=(0, 3), file_tokens=1000)
    with pytest.raises(ConfigError, match="once with --finish --no-work --restart, then start the parts"):
        share(part=(0, 3), file_tokens=1000, restart=True)
    share(file_tokens=1000, finish=True, no_work=True, restart=True)
    for index in range(4):
        share(file_tokens=1000, part=(index, 4))
    share(file_tokens=1000, finish=True)
    share(tmp_path / "other", file_tokens=1000)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "other")


def test_status_by_a_clock_that_is_behind(tmp_path: Path, share: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    share(part=(0, 3))
    output = place_of(f"{tmp_path}/out")
    with monkeypatch.context() as patched:
        replace(patched, "time_of_status", lambda: 0.0)
        found = status_of(output)
    assert found.done > 0
    assert (found.rate, status_of(output).rate > 0) == (0, True)


def test_status_of_what_was_killed_after_its_commit(
    tmp_path: Path, share: Pack, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SharedWork, "clear", lambda self: None)
        share()
    assert cli("status", str(tmp_path / "out"))[0] == 0
    cli("status", str(tmp_path / "out"), "--sweep")
    assert files_in(tmp_path / "out") == whole


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, corpus: Path, bpe2: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    how = ["pack", str(corpus), "-o", f"{tmp_path}/out/", "--tokenizer", str(bpe2), "--executor", "inline"]
    assert cli(*how, "--part", "3/3")[0] == 2
    assert cli(*how, "--part", "a/3")[0] == 2
    assert cli(*how, "--part", "auto/3")[0] == 10
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert cli(*how, "--part", "auto/3")[0] == 0
    code, said = cli(*how, "--finish", "--no-work")
    assert (code, "--array=0" in said) == (14, True)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    code, said = cli(*how, "--part", "auto/3")
    assert (code, "with SLURM_ARRAY_TASK_ID=3: I is out of range, expected 0 to 2" in said) == (2, True)
    code, said = cli(*how, "--part", "0/0")
    assert (code, "with N of at least 1" in said) == (2, True)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert cli(*how, "--part", "auto/3")[0] == 0
    code, said = cli(*how, "--finish")
    assert (code, "150 documents" in said) == (0, True)
    assert cli(*how, "--finish")[0] == 0


def test_shares_as_an_array() -> None:
    assert array_expression([90, 3, 17, 91, 92, 95]) == "3,17,90-92,95"
    assert array_expression([]) == ""


@pytest.mark.parametrize("output", ["out/", "out.pbin"])
@pytest.mark.parametrize("no_work", [False, True])
def test_the_finisher_lists_what_all_shares_left_out(tmp_path: Path, share: Pack, output: str, no_work: bool) -> None:
    lines = tmp_path / "some.jsonl"
    lines.write_text("".join(f'{{"text": "text {n} {"x" * 200}"}}\n' if n % 7 else "no JSON\n" for n in range(60)))
    how: dict[str, Any] = {"inputs": lines, "on_error": "skip"}
    how |= {} if output.endswith("/") else {"file_tokens": None}
    alone = share(f"{tmp_path}/alone-{output}", **how)
    assert [one.line for one in alone.dropped] == list(range(1, 61, 7))
    reports = [share(f"{tmp_path}/{output}", part=(index, 3), **how) for index in (0, 1, 2)]
    if output.endswith("/"):
        for index in (0, 1, 2):
            share(f"{tmp_path}/{output}", part=(index, 3), **how)  # now that all tasks are done, the token files
    assert sum(one.num_dropped for one in reports) == alone.num_dropped
    finished = share(f"{tmp_path}/{output}", finish=True, no_work=no_work, **how)
    assert (finished.missing, finished.dropped, finished.num_dropped) == ((), alone.dropped, alone.num_dropped)
    assert finished.documents == alone.documents

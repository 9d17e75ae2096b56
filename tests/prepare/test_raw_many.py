"""Indexes of many files: by any number of workers and shares, with files that fail, and what it costs a file."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.crash import hook
from tests.internals import COMMITTED_TOGETHER as TOGETHER
from tests.internals import build_index, current, main, nth_staged_name, place_of, replace
from tests.internals import unfinished_mark as mark_path

import penstock as ps
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PrepareError
from penstock.testing.cluster import upload
from penstock.testing.datasets import files_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Seven files in two folders, one of which is compressed."""
    (tmp_path / "raw/deep").mkdir(parents=True)
    for number in range(7):
        path = tmp_path / "raw" / ("deep" if number % 2 else ".") / f"{number}.jsonl"
        path.write_text("".join(f'{{"n": {line}}}\n' for line in range(number + 1)))
    (tmp_path / "raw/z.jsonl.gz").write_bytes(b"\x1f\x8b")
    return tmp_path / "raw"


def copied(root: Path, name: str) -> Path:
    """A copy of the folder, beside it."""
    for path, data in files_in(root).items():
        (root.parent / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root.parent / name / path).write_bytes(data)
    return root.parent / name


@pytest.mark.parametrize("flavor", ["modalities", "energon"])
def test_one_digest(root: Path, flavor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = copied(root, "one by one")
    for path in sorted(expected.rglob("*.jsonl")):
        build_index(path, flavor=flavor)
    replace(monkeypatch, "index_task_bytes", 40)
    inline, processes, array = (copied(root, name) for name in ("inline", "processes", "array"))
    made: Any = ps.index(inline, flavor=flavor, executor="inline")
    assert (made.num_lines, made.num_reused, len(made.indexes)) == (28, 0, 7)
    ps.index([processes / "deep", processes / "*.jsonl"], flavor=flavor, executor="processes", workers=2)
    for share in (0, 1, 3, 3):
        ps.index(array, flavor=flavor, part=(share, 5))
    assert len(list(array.rglob("*.idx"))) == 5, "two shares are missing, one of two files"
    finished: Any = ps.index(array, flavor=flavor)
    assert (finished.num_lines, finished.num_reused) == (28, 5)
    for folder in (inline, processes, array):
        assert files_in(folder) == files_in(expected)


def test_large_files_get_all_workers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = copied(root, "small")
    ps.index(expected)
    replace(monkeypatch, "large_lines_bytes", 30)
    replace(monkeypatch, "index_task_bytes", 1)
    ps.index(root, executor="processes", workers=2)
    assert files_in(root) == files_in(expected)


def test_what_fails_keeps_no_other(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "1.jsonl").write_text("faulty\n")
    (root / "deep/9.jsonl").write_text("{}\n")
    (root / "deep/9.idx").write_bytes(b"precious")
    with pytest.raises(Corrupt, match=r"raw/1.jsonl: line 1 .*2 of 9 files have no index") as caught:
        ps.index(root)
    assert caught.value.exit_status == 6
    assert "deep/9" in caplog.text
    assert (root / "deep/9.idx").read_bytes() == b"precious"
    assert len(list(root.rglob("*.idx"))) == 8
    (root / "1.jsonl").write_text("{}\n")
    (root / "deep/9.idx").unlink()
    found: Any = ps.index(root)
    assert (len(found.indexes), found.num_reused) == (9, 7)


def test_an_index_that_does_not_fit(root: Path) -> None:
    ps.index(root)
    (root / "0.jsonl").write_text('{"n": 100000}\n{"n": 2}\n')
    with pytest.raises(Corrupt, match="after the last one in its index"):
        ps.index(root)
    ps.index(root, overwrite=True)
    assert len(ps.open(root / "0.jsonl")) == 2


def test_what_a_killed_run_left_goes(root: Path) -> None:
    ps.index(root)
    before = files_in(root)
    Path(mark_path(str(root / "0.idx"))).write_text("{}")
    ps.index(root)
    assert files_in(root) == before


def test_the_end_of_an_array(root: Path) -> None:
    """It checks what is there, and makes what lacks: or only names it."""
    ps.index(root, part=(0, 3), executor="inline")
    there = {path.name for path in root.rglob("*.idx")}
    told: Any = ps.index(root, finish=True, no_work=True)
    assert (len(told.missing), len(told.indexes)) == (7 - len(there), len(there))
    assert {path.name for path in root.rglob("*.idx")} == there
    made: Any = ps.index(root, finish=True)
    assert (made.num_reused, len(made.indexes), made.missing) == (len(there), 7, ())
    one: Any = ps.index(root / "0.jsonl", finish=True)
    assert one.num_reused == 1
    (root / "0.jsonl").write_text('{"n": 100000}\n{"n": 2}\n')
    with pytest.raises(Corrupt, match="after the last one in its index"):
        ps.index(root, finish=True, no_work=True)
    for how, what in (
        ({"overwrite": True}, "doesn't replace valid indexes"),
        ({"part": (0, 2)}, "can't be combined with part"),
    ):
        with pytest.raises(ConfigError, match=what):
            ps.index(root, finish=True, **how)
    with pytest.raises(ConfigError, match="--finish"):
        ps.index(root, no_work=True)


def test_refusals(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="index_path"):
        ps.index([root / "0.jsonl", root / "2.jsonl"], tmp_path / "a.idx")
    with pytest.raises(ConfigError, match="listed twice"):
        ps.index([root, root / "0.jsonl"])
    with pytest.raises(NotFound):
        ps.index([root, root / "gone.jsonl"])
    with pytest.raises(ConfigError, match="the part is out of range"):
        ps.index(root, part=(2, 2))
    assert list(root.rglob("*.idx")) == []


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    for words, said in ((["--part", "auto/2"], "part 1 of 2: 3 indexes: 14 lines"), ([], "7 indexes: 28 lines")):
        with pytest.raises(SystemExit) as ended:
            main(["index", str(root), *words])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(said)
    (root / "0.jsonl").write_text("faulty\n")
    with pytest.raises(SystemExit) as ended:
        main(["index", str(root), "--overwrite"])
    assert ended.value.code == Corrupt.exit_status
    assert "1 of 7 files" in capsys.readouterr().err


@pytest.mark.usefixtures("s3_server")
def test_in_an_object_store(root: Path) -> None:
    upload(root, "s3://bucket/many")
    found: Any = ps.index("s3://bucket/many/*.jsonl", executor="inline")
    assert found.num_lines == 28
    ps.index(root)
    for index in root.rglob("*.idx"):
        far = place_of(f"s3://bucket/many/{index.relative_to(root)}")
        assert far.store.get(far.path) == index.read_bytes()
    again: Any = ps.index("s3://bucket/many/")
    assert again.num_reused == 7


def test_another_writer_is_named(root: Path) -> None:
    place = place_of(root / "0.idx")
    held = place.store.claim(place.path)  # type: ignore[attr-defined]
    with pytest.raises(PrepareError, match=r"0\.idx: another run is writing"):
        ps.index(root)
    held.release()
    assert len(list(root.rglob("*.idx"))) == 6


def test_a_share_that_runs_twice_at_once(root: Path) -> None:
    """It waits for itself, whether it makes indexes or replaces them."""
    ps.index(root)
    before = files_in(root)
    for how in ({}, {"overwrite": True}):
        (root / "0.idx").unlink()
        held = place_of(root / "0.idx").store.claim(str(root / "0.idx"))  # type: ignore[attr-defined]
        other = threading.Timer(0.2, held.release)
        other.start()
        assert ps.index(root, part=(0, 1), executor="inline", **how).num_lines == 28  # type: ignore[arg-type]
        other.join()
        assert files_in(root) == before


# --- small files, of which a folder's indexes become visible together ------------------------------------------------

MANY = 40


def small_files(folder: Path, count: int = MANY) -> dict[str, bytes]:
    """JSONL files of a line each, and the indexes that they get."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03d}.jsonl").write_text(f'{{"n": {number}}}\n')
    expected = copied(folder, f"{folder.name} one by one")
    for path in expected.glob("*.jsonl"):
        build_index(path)
    return files_in(expected)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of `os`, and the names that listings return."""
    made: Counter[str] = Counter()
    for name in ("open", "stat", "lstat", "fstat", "listdir", "scandir", "fsync", "unlink", "rename", "link"):
        call = getattr(os, name)

        def counting(*given: Any, call: Any = call, name: str = name, **more: Any) -> Any:
            made[name] += 1
            result = call(*given, **more)
            made["names listed"] += len(result) if name == "listdir" else 0
            return result

        monkeypatch.setattr(os, name, counting)
    return made


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("flavor", ["modalities", "energon"])
def test_cost_of_a_file_does_not_grow(
    tmp_path: Path, flavor: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and its index are opened once each; it is asked besides whether a writer is there."""
    made = count_calls(monkeypatch)
    costs: list[Counter[str]] = []
    for files in (30, 300):
        (tmp_path / f"{files}").mkdir()
        for number in range(files):
            (tmp_path / f"{files}/{number}.jsonl").write_text("{}\n")
        if again:
            ps.index(tmp_path / f"{files}", executor="inline", flavor=flavor)
        made.clear()
        ps.index(tmp_path / f"{files}", executor="inline", flavor=flavor)
        costs.append(Counter(made))
    few, many = costs
    assert {name: (few[name], n) for name, n in many.items() if n > 12 * max(1, few[name])} == {}
    each = {name: (many[name] - few[name]) / 270 for name in many}
    assert each["open"] == 2
    assert each.get("fsync", 0) == each.get("stat", 0) == each.get("scandir", 0) == 0
    assert each.get("lstat", 0) == (not again)
    assert each["fstat"] == 1 + again
    assert each.get("link", 0) == each.get("unlink", 0) == (not again)
    assert many.get("fsync", 0) <= 1
    assert many["names listed"] <= 3 * 600


@pytest.mark.parametrize("moment", ["before", "after", "torn"])
def test_killed_at_any_call(tmp_path: Path, moment: Any) -> None:
    """What is visible is whole, and the next run makes the rest and leaves no trace."""
    expected = small_files(tmp_path / "raw", 16)
    at, died = 0, True
    while died:
        at += 1
        folder = copied(tmp_path / "raw", f"{moment}{at}")
        (tmp_path / f"notes{at}").mkdir()
        child = os.fork()
        if child == 0:
            hook.install(hook.Plan(str(folder), str(tmp_path / f"notes{at}"), at, moment))
            with contextlib.suppress(BaseException):
                ps.index(folder, executor="inline")
            os._exit(0)
        died = os.waitpid(child, 0)[1] != 0
        seen = {path: data for path, data in files_in(folder).items() if not path.startswith(".")}
        assert seen.items() <= expected.items()
        ps.index(folder, executor="inline")
        assert files_in(folder) == expected, at
    assert at > 16 * 4, "each file is opened, written, named, and its hidden name goes"


def test_a_lost_index_is_made_again(tmp_path: Path) -> None:
    """After a power cut names may be gone that were not durable yet."""
    expected = small_files(tmp_path / "raw")
    ps.index(tmp_path / "raw")
    for path in list((tmp_path / "raw").glob("*.idx"))[::3]:
        path.unlink()
    found: Any = ps.index(tmp_path / "raw")
    assert found.num_reused == MANY - 14
    assert files_in(tmp_path / "raw") == expected


@pytest.mark.parametrize("flavor", ["modalities", "energon"])
@pytest.mark.parametrize("torn", ["empty", "half", "zeros", "zeros behind"])
def test_a_torn_index_is_never_trusted(tmp_path: Path, torn: str, flavor: str) -> None:
    """A file system may keep a name and lose its bytes: no writer of ours lets it, but a copy by others may."""
    small_files(tmp_path / "raw")
    victim = tmp_path / "raw/007.jsonl"
    victim.write_text("".join(f'{{"n": {line}}}\n' for line in range(2000)))
    ps.index(tmp_path / "raw", flavor=flavor)
    index = victim.with_suffix(".idx") if flavor == "modalities" else Path(f"{victim}.idx")
    whole = index.read_bytes()
    half = len(whole) // 16 * 8
    damage = {"empty": b"", "half": whole[:half], "zeros": bytes(len(whole))}
    index.write_bytes(damage.get(torn, whole[:half] + bytes(len(whole) - half)))
    with pytest.raises(FormatError) as caught:
        ps.index(tmp_path / "raw", flavor=flavor)
    assert "007" in str(caught.value)
    with pytest.raises(FormatError):
        len(ps.open(victim, flavor=flavor))
    ps.index(victim, flavor=flavor, overwrite=True)
    assert index.read_bytes() == whole


def test_a_writer_that_comes_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who claims an index after its folder was listed: that index is left to it."""
    expected = small_files(tmp_path / "raw")
    held: list[Any] = []
    encode = current("encode_lines_index")

    def encoding(*given: Any, **more: Any) -> Any:
        if not held:
            index = str(tmp_path / "raw/000.idx")
            held.append(place_of(index).store.claim(index))  # type: ignore[attr-defined]
        return encode(*given, **more)

    replace(monkeypatch, "encode_lines_index", encoding)
    with pytest.raises(PrepareError, match=r"000\.idx: another run is writing"):
        ps.index(tmp_path / "raw", executor="inline")
    held[0].release()
    assert files_in(tmp_path / "raw") == {path: data for path, data in expected.items() if path != "000.idx"}


def test_an_index_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = small_files(tmp_path / "raw")
    encode = current("encode_lines_index")

    def encoding(file: Any, *given: Any, **more: Any) -> Any:
        if file.name in ("003.jsonl", "004.jsonl"):
            build_index(file.path)
        return encode(file, *given, **more)

    replace(monkeypatch, "encode_lines_index", encoding)
    found: Any = ps.index(tmp_path / "raw", executor="inline")
    assert (found.num_lines, found.num_reused) == (MANY, 2)
    assert files_in(tmp_path / "raw") == expected


def test_small_files_that_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A faulty line, and two files that would have one index: each is named, the others have theirs."""
    expected = small_files(tmp_path / "raw")
    (tmp_path / "raw/001.jsonl").write_text("faulty\n")
    (tmp_path / "raw/002.ndjson").write_text("{}\n{}\n")
    with pytest.raises((Corrupt, ConfigError), match="2 of 41 files have no index"):
        ps.index(tmp_path / "raw", executor="inline")
    assert "002" in caplog.text
    made = {path for path in files_in(tmp_path / "raw") if path.endswith(".idx")}
    assert made == {path for path in expected if path.endswith(".idx")} - {"001.idx"}


def test_faulty_lines_of_small_files_are_counted(tmp_path: Path) -> None:
    small_files(tmp_path / "raw")
    (tmp_path / "raw/001.jsonl").write_text("faulty\n{}\n")
    found: Any = ps.index(tmp_path / "raw", on_error="skip", executor="inline")
    assert (found.num_lines, found.num_dropped) == (MANY, 1)
    assert found.indexes[1].dropped[0].line == 1


def test_what_a_killed_run_hid_goes_though_all_is_there(tmp_path: Path) -> None:
    expected = small_files(tmp_path / "raw")
    ps.index(tmp_path / "raw")
    hidden = tmp_path / "raw" / nth_staged_name(TOGETHER, 0)
    hidden.mkdir()
    os.link(tmp_path / "raw/000.idx", hidden / "000.idx")
    told: Any = ps.index(tmp_path / "raw", finish=True, no_work=True)
    assert (len(told.indexes), hidden.exists()) == (MANY, True)
    ps.index(tmp_path / "raw")
    assert files_in(tmp_path / "raw") == expected
    assert not hidden.exists()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"flavor": "megatron"}, "unknown flavor"),
        ({"on_error": "ignore"}, "unknown on_error"),
        ({"flavor": "energon", "on_error": "skip"}, "can't skip lines"),
        ({"flavor": "energon", "validate": False}, "each line must be validated"),
    ],
)
def test_what_one_index_refuses_is_refused_of_many(
    tmp_path: Path, how: dict[str, Any], what: str, dry_run: bool
) -> None:
    expected = small_files(tmp_path / "raw")
    with pytest.raises(ConfigError, match=what):
        ps.index(tmp_path / "raw/000.jsonl", **how, dry_run=dry_run)
    with pytest.raises(ConfigError, match=what):
        ps.index(tmp_path / "raw", **how, dry_run=dry_run)
    assert set(files_in(tmp_path / "raw")) == {name for name in expected if name.endswith(".jsonl")}


def test_a_name_that_the_system_refuses_is_an_error_of_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is the error, the others are messages in the same words."""
    expected = small_files(tmp_path / "raw")
    link = os.link

    def refusing(source: str, target: str) -> None:
        if target.endswith(("003.idx", "007.idx")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        link(source, target)

    monkeypatch.setattr(os, "link", refusing)
    with pytest.raises(OSError, match=rf"2 of {MANY} files have no index") as caught:
        ps.index(tmp_path / "raw", executor="inline")
    assert caught.value.filename == str(tmp_path / "raw/003.idx")
    assert f"{tmp_path}/raw/007.idx: No space left on device: " in caplog.text
    left = {"003.idx", "007.idx"}
    assert files_in(tmp_path / "raw") == {name: data for name, data in expected.items() if name not in left}
    monkeypatch.undo()
    found: Any = ps.index(tmp_path / "raw", executor="inline")
    assert (len(found.indexes), found.num_reused) == (MANY, MANY - 2)
    assert files_in(tmp_path / "raw") == expected

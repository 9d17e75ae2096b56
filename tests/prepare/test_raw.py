"""The verb that makes an index: workers, faulty lines, outputs that exist, and crashes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.internals import RAW_MODULE, Place, build_index, is_staged_name, replace

from penstock.errors import ConfigError, Corrupt, NotFound, Truncated
from penstock.store import LocalStore
from penstock.testing import FaultStore, count_operations

LINES = [b'{"n": %d, "text": "%s"}' % (n, b"x" * (n % 50)) for n in range(2000)]
BAD = {3: b"", 700: b'{"a": 1', 1999: b"\xff"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "faulty.jsonl"
    path.write_bytes(b"\n".join(BAD.get(n, line) for n, line in enumerate(LINES)) + b"\n")
    return path


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "index_range_bytes", 4099)


def expected(lines: list[bytes], without: set[int] | None = None) -> bytes:
    pairs, start = [], 0
    for number, line in enumerate(lines):
        if number not in (without or set()):
            pairs.append((start, len(line)))
        start += len(line) + 1
    return pickle.dumps(pairs, 4)


@pytest.mark.usefixtures("many_ranges")
class TestWorkers:
    @pytest.mark.parametrize("validate", [True, False])
    @pytest.mark.parametrize("workers", [None, 1, 2, 3])
    def test_the_bytes_do_not_depend_on_them(self, path: Path, workers: int | None, validate: bool) -> None:
        done: list[int] = []
        report = build_index(path, workers=workers, validate=validate, progress=done.append)
        assert path.with_suffix(".idx").read_bytes() == expected(LINES)
        assert (report.num_lines, report.num_dropped, report.dropped) == (2000, 0, ())
        assert (report.size_bytes, report.index_bytes) == (path.stat().st_size, path.with_suffix(".idx").stat().st_size)
        assert done == sorted(done)
        assert done[-1] == path.stat().st_size

    @pytest.mark.parametrize("workers", [1, 2])
    def test_the_first_faulty_line_is_named(self, faulty: Path, workers: int) -> None:
        with pytest.raises(Corrupt, match="line 4 is not valid JSON") as caught:
            build_index(faulty, workers=workers)
        assert caught.value.offset_bytes == sum(len(line) + 1 for line in LINES[:3])
        assert os.listdir(faulty.parent) == ["faulty.jsonl"]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_faulty_lines_are_counted_and_named(self, faulty: Path, workers: int) -> None:
        report = build_index(faulty, workers=workers, on_error="skip")
        lines = [BAD.get(n, line) for n, line in enumerate(LINES)]
        assert faulty.with_suffix(".idx").read_bytes() == expected(lines, set(BAD))
        assert (report.num_lines, report.num_dropped) == (1997, 3)
        assert [one.line for one in report.dropped] == [4, 701, 2000]
        places = [sum(len(line) + 1 for line in lines[:n]) for n in BAD]
        assert [(one.offset_bytes, one.length_bytes) for one in report.dropped] == list(
            zip(places, map(len, BAD.values()), strict=True)
        )
        assert ["blank" in report.dropped[0].reason, "UTF-8" in report.dropped[2].reason] == [True, True]

    def test_without_validation_everything_counts(self, faulty: Path) -> None:
        report = build_index(faulty, validate=False)
        assert (report.num_lines, report.num_dropped) == (2000, 0)

    def test_a_killed_worker_is_replaced(self, path: Path, tmp_path: Path) -> None:
        before, killed = children(), set[int]()

        def kill(done: int) -> None:
            for pid in children() - before if not killed else ():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

        build_index(path, workers=2, progress=kill)
        assert killed
        build_index(path, tmp_path / "alone.idx", executor="inline")
        assert path.with_suffix(".idx").read_bytes() == (tmp_path / "alone.idx").read_bytes()

    def test_only_the_first_hundred_are_listed(self, tmp_path: Path) -> None:
        path = tmp_path / "b.jsonl"
        path.write_bytes(b"x\n" * 5000)
        report = build_index(path, on_error="skip")
        assert (report.num_lines, report.num_dropped) == (0, 5000)
        assert [one.line for one in report.dropped] == list(range(1, 101))


class TestOutput:
    def test_an_index_that_exists_is_refused(self, path: Path) -> None:
        path.with_suffix(".idx").write_bytes(b"mine")
        with pytest.raises(ConfigError, match="exists"):
            build_index(path)
        assert path.with_suffix(".idx").read_bytes() == b"mine"
        build_index(path, overwrite=True)
        assert path.with_suffix(".idx").read_bytes() == expected(LINES)

    def test_a_failure_keeps_the_old_index(self, faulty: Path) -> None:
        faulty.with_suffix(".idx").write_bytes(b"mine")
        with pytest.raises(Corrupt):
            build_index(faulty, overwrite=True)
        assert faulty.with_suffix(".idx").read_bytes() == b"mine"

    def test_elsewhere(self, path: Path, tmp_path: Path) -> None:
        target = tmp_path / "new" / "folder" / "other.idx"
        assert build_index(path, target).index_path == str(target)
        assert target.read_bytes() == expected(LINES)
        assert not path.with_suffix(".idx").exists()

    def test_never_over_its_own_file(self, path: Path) -> None:
        with pytest.raises(ConfigError):
            build_index(path, path, overwrite=True)
        with pytest.raises(ConfigError):
            build_index(path.parent / "a.idx")
        assert path.read_bytes().count(b"\n") == 2000

    def test_a_full_disk_leaves_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace(monkeypatch, "place_of_index", lambda path: Place(FaultStore(3, "enospc"), str(path)))
        with pytest.raises(OSError, match="space"):
            build_index(path)
        assert os.listdir(path.parent) == ["a.jsonl"]

    def test_a_fault_anywhere_leaves_nothing_or_all(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stores: list[Any] = []
        replace(monkeypatch, "place_of_index", lambda path: Place(stores[-1], str(path)))

        def run(store: Any) -> None:
            stores.append(store)
            build_index(path, overwrite=True)

        index_path = path.with_suffix(".idx")
        for n in range(1, count_operations(run) + 1):
            index_path.write_bytes(b"old")
            try:
                run(FaultStore(n, "raise"))
            except OSError:
                assert index_path.read_bytes() in (b"old", expected(LINES))
            else:
                assert index_path.read_bytes() == expected(LINES)
            assert sorted(os.listdir(path.parent)) == ["a.idx", "a.jsonl"]


class TestArguments:
    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound):
            build_index(tmp_path / "none.jsonl")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("wrong", [{"on_error": "ignore"}, {"workers": 0}, {"flavor": "nosuch"}])
    def test_values_that_can_not_be(self, path: Path, wrong: Any) -> None:
        with pytest.raises(ConfigError):
            build_index(path, **wrong)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.jsonl"
        path.touch()
        with pytest.raises(Corrupt, match="the file is empty"):
            build_index(path)
        assert build_index(path, on_error="skip").num_dropped == 1
        assert build_index(path, validate=False, overwrite=True).num_lines == 0
        assert path.with_suffix(".idx").read_bytes() == pickle.dumps([], 4)


def test_killed_and_run_again(path: Path) -> None:
    """SIGKILL of the whole run: no index, and the next run ends as if nothing had been."""
    code = (
        f"import os, sys, importlib; raw = importlib.import_module({RAW_MODULE!r})\n"
        "raw.build_index(sys.argv[1], progress=lambda done: os.kill(os.getpid(), 9))"
    )
    child = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    assert not path.with_suffix(".idx").exists()
    build_index(path)
    assert path.with_suffix(".idx").read_bytes() == expected(LINES)
    assert not [name for name in os.listdir(path.parent) if is_staged_name(name)]


@pytest.mark.parametrize("validate", [True, False])
def test_a_file_that_shrinks_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch, validate: bool) -> None:
    size_bytes = path.stat().st_size
    monkeypatch.setattr(LocalStore, "size", lambda self, path: size_bytes + 10)
    with pytest.raises(Truncated, match="shorter"):
        build_index(path, validate=validate)
    assert os.listdir(path.parent) == ["a.jsonl"]


def children() -> set[int]:
    """Processes that this one started."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for tasks in found for pid in tasks.read_text().split()}

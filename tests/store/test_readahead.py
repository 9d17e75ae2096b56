"""Reading ahead: only mapped files are asked for, whole pages inside them, and only while reads meet the disk."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from penstock.store import LocalStore
from penstock.store import mapped as mapped_module
from penstock.store.mapped import Mapping, Readahead, disk_faults, random_access


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 4096)
    return LocalStore().mmap(str(tmp_path / "a"))


def test_any_range_may_be_asked_for(mapped: np.ndarray) -> None:
    ask = random_access(mapped)
    assert ask is not None
    for start, stop in (
        (0, 1),
        (5, 9000),
        (mmap.PAGESIZE, mmap.PAGESIZE + 1),
        (0, len(mapped)),
        (999_999, len(mapped)),
    ):
        ask(start, stop)
    assert mapped[300] == 300 % 256


def test_ranges_are_whole_pages_in_small_steps(tmp_path: Path) -> None:
    calls: list[tuple[int, int, int]] = []

    class Watched(Mapping):
        def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
            calls.append((option, start, -1 if length is None else length))

    (tmp_path / "a").write_bytes(bytes(1 << 20))
    with (tmp_path / "a").open("rb") as file:
        array = np.asarray(Watched(file.fileno(), 1 << 20))
    ask = random_access(array)
    assert ask is not None
    assert calls == [(mmap.MADV_RANDOM, 0, -1)]
    ask(5000, 400_000)
    asked = [(start, length) for option, start, length in calls[1:] if option == mmap.MADV_WILLNEED]
    assert asked[0][0] == 4096
    assert all(start % mmap.PAGESIZE == 0 and length <= 1 << 17 for start, length in asked)
    assert [start + length for start, length in asked[:-1]] == [start for start, _ in asked[1:]]
    assert sum(asked[-1]) == 400_000


@pytest.mark.parametrize("array", [np.zeros(10, np.uint8), np.empty(0, np.uint8), np.frombuffer(b"abc", np.uint8)])
def test_what_is_no_mapping_is_never_asked_for(array: np.ndarray) -> None:
    assert random_access(array) is None


def test_asking_begins_with_a_wait_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = Readahead()
    assert (ahead.wanted(), ahead.probing) == (False, True)
    assert not ahead.watch(disk_faults())
    assert (ahead.wanted(), ahead.probing) == (False, False)
    monkeypatch.setattr(mapped_module, "disk_faults", lambda: 7)
    assert ahead.watch(6)
    assert [ahead.wanted() for _ in range(mapped_module._BATCHES + 1)] == [True] * mapped_module._BATCHES + [False]
    assert ahead.probing
    assert not ahead.watch(7)
    assert not ahead.probing


def test_faults_are_those_of_this_thread() -> None:
    before = disk_faults()
    assert before >= 0
    assert disk_faults() >= before

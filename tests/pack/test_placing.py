"""Plans of any size: the same, bit for bit, as those made in memory, in memory that does not grow."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.pack import in_memory

from penstock.mix import Balance, Concat, concat
from penstock.order import Sequential
from penstock.pack import BestFit, PackByLength, best_fit, by_length, placing
from penstock.pack.best_fit import plan_windows
from penstock.store import derived
from penstock.store.derived import DerivedCache
from penstock.testing.memory import MemorySource, MemoryTokens


def starts_of(lengths: NDArray[Any] | list[int]) -> NDArray[np.int64]:
    return np.append(0, np.cumsum(lengths, dtype=np.int64)).astype(np.int64)


def small_runs(patch: pytest.MonkeyPatch, pieces: int) -> None:
    for module in (placing, best_fit, by_length):
        patch.setattr(module, "RUN_PIECES", pieces)


def same_plan(found: Any, expected: Any) -> None:
    for name in ("window_starts", "piece_starts", "piece_lengths"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), name


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=80), st.integers(1, 24), st.integers(1, 20))
def test_plans_are_those_made_in_memory(lengths: list[int], capacity: int, run: int) -> None:
    starts = starts_of(lengths)
    with pytest.MonkeyPatch.context() as patch:
        small_runs(patch, run)
        same_plan(plan_windows(starts, capacity), in_memory.plan_windows(starts, capacity))


def test_a_large_plan_is_the_one_made_in_memory() -> None:
    lengths = np.random.default_rng(2).lognormal(6, 1.3, 100_000).astype(np.int64)
    starts = starts_of(lengths)
    expected = in_memory.plan_windows(starts, 2048)
    same_plan(plan_windows(starts, 2048), expected)
    with pytest.MonkeyPatch.context() as patch:
        small_runs(patch, 9999)
        same_plan(plan_windows(starts, 2048), expected)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 30), st.sampled_from(["alone", "drop"]))
def test_groups_are_those_made_in_memory(lengths: list[int], room: int, too_long: Any) -> None:
    given_lengths = np.array(lengths, np.int64)
    short = np.flatnonzero(given_lengths <= room)
    group_of, n_groups = in_memory.place_by_length(given_lengths[short], room)
    expected = [short[group_of == group].tolist() for group in range(n_groups)]
    expected += [[one] for one in np.flatnonzero(given_lengths > room).tolist() if too_long == "alone"]
    with pytest.MonkeyPatch.context() as patch:
        small_runs(patch, 7)
        packed = PackByLength(MemorySource([{"n": n} for n in lengths]), room, given_lengths, too_long=too_long)
        assert len(packed) == len(expected)
        assert [packed.members(index).tolist() for index in range(len(packed))] == expected
        assert packed.costs.tolist() == [int(given_lengths[members].sum()) for members in expected]


def test_a_document_of_many_windows_is_cut_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    small_runs(monkeypatch, 50)
    looked_at: list[int] = []
    plain = best_fit._pieces

    def pieces(*args: Any) -> Any:
        found = plain(*args)
        looked_at.append(len(found[0]))
        return found

    monkeypatch.setattr(best_fit, "_pieces", pieces)
    starts = starts_of([3, 8 * 10_000 + 5, 0, 7, 8 * 3, 8 * 200])
    same_plan(plan_windows(starts, 8), in_memory.plan_windows(starts, 8))
    assert max(looked_at) <= 51


class Lengths(MemoryTokens):
    """Documents of these lengths, without their tokens."""

    def __init__(self, lengths: NDArray[Any], keep: DerivedCache) -> None:
        super().__init__([[1]], eos_id=0)
        self.starts = starts_of(lengths)
        self.derived = keep

    @property
    def doc_starts(self) -> NDArray[np.int64]:
        return self.starts

    @property
    def num_tokens(self) -> int:
        return int(self.starts[-1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def fingerprint(self) -> str:
        return f"{len(self):032x}"


@pytest.mark.parametrize("kind", ["windows", "groups"])
def test_memory_does_not_grow_with_the_documents(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_SMALL_SCRATCH_BYTES", 0)
    small_runs(monkeypatch, 1 << 12)
    keep = DerivedCache(str(tmp_path))
    peaks: list[int] = []
    for count in (50_000, 500_000):
        lengths = np.random.default_rng(3).integers(1, 300, count)
        source = Lengths(lengths, keep)
        lengths_given = source.starts[1:] - source.starts[:-1]
        tracemalloc.start()
        if kind == "windows":
            assert len(BestFit(512)(source)) > count // 4
        else:
            packed = PackByLength(source, 512, lengths_given, derived=keep)
            Balance(Sequential(packed), 8).recipe()
        own = 0 if kind == "windows" else lengths_given.nbytes + lengths.nbytes // 8
        peaks.append(tracemalloc.get_traced_memory()[1] - own)
        tracemalloc.stop()
    # What is written to a file is held back up to 1 MiB.
    assert peaks[1] <= peaks[0] + 1_500_000 < 6_000_000


def test_plans_over_many_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    few = Concat([MemoryTokens([[1, 2, 0], [3, 0]], eos_id=0)] * 3)
    assert few.derived is None
    monkeypatch.setattr(concat, "_KEPT_DOCS", 2)
    expected = BestFit(4)(few).plan
    monkeypatch.setattr(concat, "_KEPT_DOCS", 1)
    for _ in range(2):
        joined = Concat([MemoryTokens([[1, 2, 0], [3, 0]], eos_id=0)] * 3)
        assert joined.derived is not None
        same_plan(BestFit(4)(joined).plan, expected)
    assert len(list((tmp_path / "derived").glob("best-fit*.npy"))) == 3


def test_costs_that_the_source_knows_are_not_pickled() -> None:
    source = PackByLength(MemorySource([{"n": n} for n in range(4000)]), 8, np.full(4000, 3))
    balanced = Balance(Sequential(source), 4)
    given_costs = Balance(Sequential(source), 4, source.costs.copy())
    assert balanced.fingerprint == given_costs.fingerprint
    assert len(pickle.dumps(given_costs)) - len(pickle.dumps(balanced)) > 8 * 1900
    assert pickle.loads(pickle.dumps(balanced)).recipe() == balanced.recipe()


def test_a_plan_that_is_kept_is_not_pickled(tmp_path: Path) -> None:
    source = MemorySource([{"n": n} for n in range(400)])
    sizes: list[int] = []
    for keep in (None, DerivedCache(str(tmp_path))):
        packed = PackByLength(source, 8, np.full(400, 3), derived=keep)
        assert packed.members(3).tolist() == [6, 7]
        sizes.append(len(pickle.dumps(packed)))
        assert pickle.loads(pickle.dumps(packed)).members(3).tolist() == [6, 7]
    assert sizes[1] < sizes[0] - 8 * 700


def test_scratch_is_zeros_that_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = DerivedCache(str(tmp_path / "a"))
    assert keep.scratch(10, "int64").tolist() == [0] * 10
    monkeypatch.setattr(derived, "_SMALL_SCRATCH_BYTES", 0)
    found = keep.scratch(1000, "int32")
    found[7] = 3
    assert (found.dtype, int(found.sum())) == (np.int32, 3)
    assert not list((tmp_path / "a" / "derived").iterdir())
    (tmp_path / "file").write_text("")
    assert DerivedCache(str(tmp_path / "file")).scratch(5, "int8").tolist() == [0] * 5
    with pytest.raises(OSError, match=r"No space left|File too large|Invalid"):
        keep.scratch(1 << 55, "int64")

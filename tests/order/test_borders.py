"""Storage blocks as arithmetic: the same borders, orders and digests as an array of them, in no memory."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mix import Concat, Epochs, Map
from penstock.node.blocks import Blocks, EvenBlocks, StoredBlocks, blocks_of, even_blocks, joined
from penstock.order import Sequential, Shuffle, Take, blocks
from penstock.order.blocks import BlockOrder
from penstock.testing.memory import MemorySource
from penstock.types import IntArray

EVEN = st.builds(even_blocks, st.integers(0, 60), st.integers(1, 7))
MIXED = st.builds(
    lambda even, count, odd: EvenBlocks(
        even,
        count,
        np.array(sorted(one for one in odd if one < count), np.int64),
        np.array([odd[one] for one in sorted(odd) if one < count], np.int64),
    ),
    st.integers(1, 7),
    st.integers(1, 12),
    st.dictionaries(st.integers(0, 11), st.integers(0, 20), max_size=5),
)


def stored(found: Blocks) -> StoredBlocks:
    return StoredBlocks(found.starts())


@settings(max_examples=200, deadline=None)
@given(EVEN | MIXED)
def test_borders_are_those_of_the_array(found: EvenBlocks) -> None:
    same = stored(found)
    sizes = np.full(found.count, found.even)
    sizes[found.odd] = found.sizes
    assert same.array.tolist() == np.cumsum([0, *sizes]).tolist()
    assert (found.count, found.size, found.digest()) == (same.count, same.size, same.digest())
    numbers, places = np.arange(found.count), np.arange(found.size)
    assert found.start_of(numbers).tolist() == same.start_of(numbers).tolist()
    assert found.block_of(places).tolist() == same.block_of(places).tolist()
    assert pickle.loads(pickle.dumps(found)).starts().tolist() == same.array.tolist()


@settings(max_examples=100, deadline=None)
@given(
    (EVEN | MIXED).filter(lambda found: found.size > 0),
    st.integers(0, 9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_orders_are_those_of_the_array(found: EvenBlocks, seed: int, lanes: int, opened: int, epoch: int) -> None:
    listed = BlockOrder(found.starts(), seed, lanes, opened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_LISTED_BLOCKS", 0)
        computed = BlockOrder(found, seed, lanes, opened)
    assert isinstance(computed._blocks, EvenBlocks)
    positions = np.arange(epoch * found.size, (epoch + 2) * found.size)
    indices = listed.order(positions)
    assert computed.order(positions).tolist() == indices.tolist()
    assert [computed.order_one(one) for one in positions.tolist()] == indices.tolist()
    first = positions[: found.size]
    assert computed.inverse(indices[: found.size], epoch).tolist() == first.tolist()
    assert computed.blocks_read(first[:3]).tolist() == listed.blocks_read(first[:3]).tolist()
    assert computed.params() == listed.params()


@settings(max_examples=100, deadline=None)
@given(EVEN | MIXED, st.integers(0, 60), st.integers(0, 60))
def test_parts_are_those_of_the_array(found: EvenBlocks, start: int, stop: int) -> None:
    start, stop = sorted((min(start, found.size), min(stop, found.size)))
    starts = found.starts()
    ends = [start, stop] if start < stop else [start]
    expected = np.unique([*starts[(starts > start) & (starts < stop)], *ends]) - start
    assert found.cut(start, stop).starts().tolist() == expected.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(EVEN | MIXED | EVEN.map(stored), max_size=5))
def test_joined_blocks_are_those_of_the_arrays(parts: list[Blocks]) -> None:
    ends = np.cumsum([0, *(part.size for part in parts)])
    expected = [*(one for part, end in zip(parts, ends, strict=False) for one in (part.starts()[:-1] + end)), ends[-1]]
    assert joined(parts).starts().tolist() == expected


class Huge(MemorySource):
    """As many samples as are asked for, none of which is there."""

    def __init__(self, size: int) -> None:
        super().__init__([{"n": 0}])
        self.size = size

    def __len__(self) -> int:
        return self.size

    @property
    def fingerprint(self) -> str:
        return f"{self.size:032x}"


def of_all_kinds(size: int) -> dict[str, Any]:
    huge: Any = Huge(size)
    return {
        "plain": huge,
        "mapped": Map(huge, len),
        "taken": Take(huge, 5, size - 5),
        "concat": Concat([huge, Huge(7), Map(huge, len)]),
        "epochs": Epochs({"a": (huge, 0.5), "b": (Sequential(huge), 1.5)}),
    }


@pytest.mark.parametrize("name", of_all_kinds(10))
def test_the_memory_of_an_order_does_not_grow_with_its_source(name: str) -> None:
    peaks: list[int] = []
    for size in (10**11, 10**12):
        source = of_all_kinds(size)[name]
        tracemalloc.start()
        stream = Shuffle(source, 3, mode="blocks", lanes=8)
        stream.order(np.arange(0, 10**6, 1000))
        stream.order_one(size // 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.2 * peaks[0] < 5_000_000


class WithEmptyBlocks(Huge):
    @property
    def block_starts(self) -> IntArray:
        return np.array([0, 0, 3, 3, self.size])


def test_empty_blocks_stay_in_a_pass() -> None:
    joined_source: Any = Concat([Huge(4096 * 40), WithEmptyBlocks(10)])
    assert isinstance(blocks_of(joined_source), EvenBlocks)
    size = len(joined_source)
    expected = [*range(0, 4096 * 40 + 1, 4096), 4096 * 40, 4096 * 40 + 3, 4096 * 40 + 3, size]
    assert joined_source.block_starts.tolist() == expected
    assert Epochs({"a": (joined_source, 1)}).block_starts.tolist() == expected


def test_the_digest_of_borders_is_made_in_runs() -> None:
    even_blocks(10**6).digest()
    peaks: list[int] = []
    for size in (10**9, 10**10):
        tracemalloc.start()
        even_blocks(size).digest()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.2 * peaks[0] < 5_000_000


def test_a_large_source_is_ordered_as_its_array_of_blocks_would_be() -> None:
    size = 300_000_123
    positions: IntArray = np.random.default_rng(0).integers(0, 3 * size, 2000)
    computed = Shuffle(Huge(size), 9, mode="blocks", lanes=4)
    listed = BlockOrder(np.append(np.arange(0, size, 4096), size), 9, 4)
    assert computed.order(positions).tolist() == listed.order(positions).tolist()
    assert isinstance(blocks_of(Huge(size)), EvenBlocks)
    # As version 0.1 wrote it into states.
    assert computed.recipe()["blocks"] == listed.params()["blocks"]

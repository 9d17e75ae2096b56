"""Block shuffle: exact for any blocks and lanes, local, and yet mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.node.blocks import blocks_of
from penstock.order.blocks import MOST_TAPES, BlockOrder
from penstock.testing.memory import MemorySource
from penstock.types import IntArray

BLOCKS = st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any)


def starts_of(sizes: list[int]) -> IntArray:
    return np.cumsum([0, *sizes], dtype=np.int64)


@settings(max_examples=80, deadline=None)
@given(BLOCKS, st.integers(0, 99), st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_any_blocks_and_lanes(sizes: list[int], seed: int, lanes: int, open_blocks: int, epoch: int) -> None:
    order = BlockOrder(starts_of(sizes), seed, lanes, open_blocks)
    n = order.size
    positions = np.arange(epoch * n, (epoch + 2) * n)
    indices = order.order(positions)
    for turn in range(2):
        part = slice(turn * n, (turn + 1) * n)
        assert sorted(indices[part].tolist()) == list(range(n))
        assert np.array_equal(order.inverse(indices[part], epoch + turn), positions[part])
    assert indices.tolist() == [order.order_one(position) for position in positions.tolist()]


@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_few_blocks_are_open_at_a_time(lanes: int) -> None:
    block, open_blocks = 100, 4
    starts = np.arange(0, 40_000 + 1, block)
    order = BlockOrder(starts, 5, lanes, open_blocks)
    for lane in range(lanes):
        positions = np.arange(lane, order.size, lanes)
        for begin in range(0, len(positions), block):
            # A run of one block's length touches two windows at most, each of about `open_blocks` blocks.
            near = positions[begin : begin + block]
            assert len(order.blocks_read(near)) <= 2 * (2 * open_blocks + 1)


def test_each_block_is_read_by_one_lane_or_two_neighbours() -> None:
    starts = np.arange(0, 10_001, 10)
    order = BlockOrder(starts, 3, lanes=8, open_blocks=4)
    read = [len(order.blocks_read(np.arange(lane, order.size, 8))) for lane in range(8)]
    assert sum(read) <= 1000 + 8


def test_blocks_and_samples_are_mixed() -> None:
    starts = np.arange(0, 10_001, 100)
    order = BlockOrder(starts, 3, open_blocks=8)
    indices = order.order(np.arange(10_000))
    blocks = indices // 100
    # Neighbours share a block about once in eight; in stored order they nearly always would.
    assert 0.05 < (blocks[1:] == blocks[:-1]).mean() < 0.25
    first_seen = [int(block) for block in dict.fromkeys(blocks.tolist())]
    assert abs(np.corrcoef(first_seen, np.arange(100))[0, 1]) < 0.35


def test_windows_span_about_open_blocks() -> None:
    starts = np.arange(0, 10_001, 100)
    tight, wide = (BlockOrder(starts, 3, open_blocks=count) for count in (1, 20))
    first = np.arange(200)
    assert len(tight.blocks_read(first)) <= 6 < 15 <= len(wide.blocks_read(first))


def test_tapes_kept_are_bounded_and_not_pickled() -> None:
    order = BlockOrder(starts_of([5, 5]), 1)
    for epoch in range(20):
        order.order(np.arange(epoch * 10, epoch * 10 + 10))
    state = order.__getstate__()
    assert len(order._tapes) <= MOST_TAPES
    assert state["_tapes"] == ()


@pytest.mark.parametrize("starts", [[0], [1, 5], [0, 5, 3], [0, 0], []])
def test_block_starts_that_are_none(starts: list[int]) -> None:
    with pytest.raises(ConfigError):
        BlockOrder(np.array(starts, dtype=np.int64), 0)


@pytest.mark.parametrize(("lanes", "open_blocks"), [(0, 4), (1, 0)])
def test_options_that_can_not_work(lanes: int, open_blocks: int) -> None:
    with pytest.raises(ConfigError):
        BlockOrder(starts_of([4]), 0, lanes, open_blocks)


class InBlocks(MemorySource):
    @property
    def block_starts(self) -> IntArray:
        return np.array([0, 3, 10])


def test_blocks_of_a_source() -> None:
    samples = [{"n": n} for n in range(10)]
    assert blocks_of(InBlocks(samples)).starts().tolist() == [0, 3, 10]
    assert blocks_of(InBlocks(samples), 4).starts().tolist() == [0, 4, 8, 10]
    assert blocks_of(MemorySource(samples)).starts().tolist() == [0, 10]
    assert blocks_of(MemorySource(samples), 5).starts().tolist() == [0, 5, 10]
    with pytest.raises(ConfigError):
        blocks_of(MemorySource(samples), 0)


@pytest.mark.parametrize(("lanes", "world"), [(8, 8), (8, 2), (64, 16), (6, 3)])
def test_parts_read_are_what_a_rank_reads_of_each_block(lanes: int, world: int) -> None:
    starts = np.cumsum([0, *(3 + number * 7919 % 40 for number in range(30))])
    order, size = BlockOrder(starts, 5, lanes, open_blocks=3), int(starts[-1])
    for epoch in (0, 3):
        for rank in range(world):
            positions = np.arange(epoch * size, (epoch + 1) * size, dtype=np.int64)
            positions = positions[positions % world == rank]
            read = np.sort(order.order(positions))
            blocks = np.searchsorted(starts, read, side="right") - 1
            expected = {
                (int(read[blocks == one].min()), int(read[blocks == one].max()) + 1) for one in np.unique(blocks)
            }
            first, stop = order.parts_read(np.append(positions, positions + size), world)  # an epoch further on too
            assert set(zip(first.tolist(), stop.tolist(), strict=True)) == expected

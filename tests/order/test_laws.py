"""Every order obeys the laws of orders, every stream those of streams."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from penstock.order.blocks import BlockOrder
from penstock.order.ordered import OrderedStream
from penstock.order.permutation import GlobalOrder
from penstock.order.shuffle import Sequential, SequentialOrder, Shuffle
from penstock.testing.memory import MemorySource
from penstock.testing.orders import OrderLaws
from penstock.testing.streams import StreamLaws

SOURCE = MemorySource([{"number": number, "text": "x" * (number % 5)} for number in range(101)])


class TestGlobalOrder(OrderLaws):
    version = "feistel-1"
    golden: ClassVar = {
        (1, 0, 0): [0, 0, 0],
        (10, 0, 0): [6, 5, 2, 3, 4, 9, 7, 1],
        (10, 7, 10): [8, 3, 2, 4, 6, 9, 7, 0],
        (64, 1, 64): [47, 52, 13, 50, 28, 33, 10, 55],
        (65, 1, 65): [29, 47, 58, 34, 4, 3, 32, 30],
        (1000, 7, 995): [245, 612, 934, 947, 382, 758, 217, 961],
        (10**12, 42, 10**12 - 3): [993532807087, 122258312150, 603356313162, 41049989259, 299760301756],
    }

    def make(self, n: int, seed: int) -> GlobalOrder:
        return GlobalOrder(n, seed)


class TestBlockOrder(OrderLaws):
    version = "blocks-1"
    largest = 0  # memory grows with the number of blocks
    golden: ClassVar = {
        (1, 0, 0): [0, 0, 0],
        (10, 0, 0): [0, 6, 8, 1, 4, 7, 3, 5],
        (10, 7, 10): [0, 6, 7, 2, 5, 8, 1, 4],
        (64, 1, 64): [24, 47, 34, 55, 37, 31, 23, 42],
        (1000, 7, 995): [876, 346, 158, 881, 984, 879, 614, 924],
    }

    def make(self, n: int, seed: int) -> BlockOrder:
        return BlockOrder(np.unique([*range(0, n, 7), n]).astype(np.int64), seed, lanes=3, open_blocks=2)


class TestSequentialOrder(OrderLaws):
    version = "sequential-1"
    shuffles = False
    golden: ClassVar = {(10, 0, 7): [7, 8, 9, 0, 1], (10**12, 42, 10**12 - 2): [999999999998, 999999999999, 0, 1]}

    def make(self, n: int, seed: int) -> SequentialOrder:
        return SequentialOrder(n)


class TestSequentialOrderInLanes(OrderLaws):
    version = "sequential-1"
    shuffles = False
    golden: ClassVar = {
        (10, 0, 0): [0, 4, 7, 1, 5, 8, 2, 6],
        (1000, 7, 995): [998, 332, 666, 999, 333, 333, 667, 0],
        (10**12, 42, 10**12 - 3): [666666666666, 999999999999, 333333333333, 333333333333, 666666666667, 0],
    }

    def make(self, n: int, seed: int) -> SequentialOrder:
        return SequentialOrder(n, 3)


class TestShuffle(StreamLaws):
    def make(self) -> OrderedStream:
        return Shuffle(SOURCE, seed=7)


class TestShuffleInLanes(StreamLaws):
    def make(self) -> OrderedStream:
        return Shuffle(SOURCE, seed=7, lanes=4)


class TestBlockShuffle(StreamLaws):
    def make(self) -> OrderedStream:
        return Shuffle(SOURCE, seed=7, mode="blocks", lanes=3, block_size=9, open_blocks=2)


class TestSequential(StreamLaws):
    def make(self) -> OrderedStream:
        return Sequential(SOURCE, lanes=2)


def test_what_decides_the_order_decides_the_fingerprint() -> None:
    streams = [
        Shuffle(SOURCE, seed=7),
        Shuffle(SOURCE, seed=8),
        Shuffle(SOURCE, seed=7, lanes=2),
        Shuffle(SOURCE, seed=7, mode="blocks", block_size=9),
        Shuffle(SOURCE, seed=7, mode="blocks", block_size=10),
        Shuffle(SOURCE, seed=7, mode="blocks", block_size=9, open_blocks=3),
        Shuffle(MemorySource([{"number": number} for number in range(101)]), seed=7),
        Sequential(SOURCE),
        Sequential(SOURCE, lanes=2),
    ]
    assert len({stream.fingerprint for stream in streams}) == len(streams)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_every_world_size_gives_the_same_global_batches(world: int) -> None:
    stream = Shuffle(SOURCE, seed=1, lanes=2)
    whole = stream.get_batch(np.arange(48))["number"]
    parts = np.empty_like(whole)
    for rank in range(world):
        parts[rank::world] = stream.get_batch(np.arange(rank, 48, world))["number"]
    assert np.array_equal(parts, whole)

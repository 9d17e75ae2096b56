"""Streams of numbers, and a slow, independent account of what a blend holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.internals import permute_one, subkey

from penstock.order import Shuffle
from penstock.testing.memory import MemorySource


def numbers(length: int, first: int = 0) -> MemorySource:
    """`{"n": first + i}`."""
    return MemorySource([{"n": first + i} for i in range(length)])


class SlowBlend:
    """`blend-1` for one position at a time, by walking through its block place by place."""

    def __init__(self, counts: Mapping[str, int], key: int, lanes: int) -> None:
        self.counts = counts
        self.key = key
        self.lanes = lanes

    def at(self, position: int) -> tuple[str, int]:
        """Name of the child at `position`, and the position in it."""
        size = sum(self.counts.values())
        names = [name for name, count in self.counts.items() for _ in range(count)]
        lane, place = position % self.lanes, position // self.lanes
        block, within = place // size, place % size
        key = subkey(subkey(self.key, lane), block)
        held: dict[int, str] = {permute_one(slot, size, key): name for slot, name in enumerate(names)}
        before = [held[earlier] for earlier in range(within)]
        name = held[within]
        own_place = block * self.counts[name] + before.count(name)
        return name, own_place * self.lanes + lane


@pytest.fixture(scope="session")
def slow_blend() -> type[SlowBlend]:
    return SlowBlend


@pytest.fixture(scope="session")
def make_numbers() -> Any:
    return numbers


@pytest.fixture
def books_and_web() -> dict[str, Any]:
    return {"books": Shuffle(numbers(50), 1), "web": Shuffle(numbers(70, 1000), 2)}

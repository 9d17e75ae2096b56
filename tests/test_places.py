"""Where samples come from, as far as each source knows."""

from __future__ import annotations

from penstock._places import place_of, token_extents
from penstock.errors import NotFound
from penstock.testing.memory import MemorySource, MemoryTokens
from penstock.types import Extent, Place

SAMPLES = [{"n": n} for n in range(3)]


class Keyed(MemorySource):
    def key_of(self, index: int, /) -> str:
        return f"k{index}"

    def index_of(self, key: str, /) -> int:
        raise NotFound(key)


class Placed(MemorySource):
    def extent(self, index: int, /) -> Extent:
        return Extent("f", index, 1)


class Telling(Keyed):
    def place_of(self, index: int, /) -> Place:
        return Place(key="told", documents=((index, 0, 1),))


class Ranged(MemoryTokens):
    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent("f", start, stop),)


def test_each_power_is_asked_where_it_is_there() -> None:
    assert place_of(MemorySource(SAMPLES), 1) == Place()
    assert place_of(Keyed(SAMPLES), 1) == Place(key="k1")
    assert place_of(Placed(SAMPLES), 1) == Place(extents=(Extent("f", 1, 1),))
    assert place_of(Telling(SAMPLES), 1) == Place(key="told", documents=((1, 0, 1),))


def test_token_ranges() -> None:
    assert token_extents(MemoryTokens([[1, 2]]), 0, 2) is None
    assert token_extents(Ranged([[1, 2]]), 0, 2) == (Extent("f", 0, 2),)

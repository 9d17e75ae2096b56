"""Where samples come from, as far as each source knows."""

from __future__ import annotations

from penstock._access import place_of, token_extents
from penstock.errors import Corrupt
from penstock.testing.memory import KeyedSource, MemorySource, MemoryTokens
from penstock.types import Extent, Place

SAMPLES = [{"n": n} for n in range(3)]


class Placed(KeyedSource):
    def place_of(self, index: int, /) -> Place:
        if index == 2:
            raise Corrupt("a damaged sample", path="f")
        return Place(extents=(Extent("f", index, 1),))


class Telling(KeyedSource):
    def place_of(self, index: int, /) -> Place:
        return Place(key="told", documents=((index, 0, 1),))


class Ranged(MemoryTokens):
    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent("f", start, stop),)


def test_each_power_is_asked_where_it_is_there() -> None:
    assert place_of(MemorySource(SAMPLES), 1) == Place()
    assert place_of(KeyedSource(SAMPLES, "n"), 1) == Place(key="1")
    assert place_of(Placed(SAMPLES, "n"), 1) == Place(key="1", extents=(Extent("f", 1, 1),))
    assert place_of(Placed(SAMPLES, "n"), 2) == Place(key="2")
    assert place_of(Telling(SAMPLES, "n"), 1) == Place(key="told", documents=((1, 0, 1),))


def test_token_ranges() -> None:
    assert token_extents(MemoryTokens([[1, 2]]), 0, 2) is None
    assert token_extents(Ranged([[1, 2]]), 0, 2) == (Extent("f", 0, 2),)

"""Removal of positions from a stream, such as the batches of a loss spike."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from penstock._access import expect_lanes
from penstock._arrays import as_position, as_positions
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.node.over import Finder, MovedStream
from penstock.order.permutation import MAX_SIZE
from penstock.types import IntArray

T = TypeVar("T")


class Skip(MovedStream[T]):
    """Stream without some positions of another stream; later samples move up.

    Lanes are preserved if the number of skipped positions before every place is a multiple of the stream's lanes.
    Otherwise samples change lanes, and the result has one lane.

    Args:
        stream: any stream.
        ranges: positions of `stream` to skip: `(start, stop)` pairs or ranges, in any order, overlapping or not; one
            `range`; or an integer array of single positions. Memory: 24 bytes per range.

    Raises:
        ConfigError: a range is negative, runs backwards or has a step.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Sequential(ps.open("corpus.pbin"))
        >>> shorter = ps.Skip(stream, [(1, 4)])
        >>> [shorter.locate(position).index for position in range(3)]
        [0, 4, 5]
    """

    kind = "skip"

    def __init__(self, stream: Stream[T], ranges: Iterable[tuple[int, int] | range] | range | IntArray) -> None:
        super().__init__(stream)
        self.ranges = _merged(_pairs(ranges))
        bounds = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        self._lost = np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])])
        # From outer position `_moves[j]` on, j + 1 ranges are before it.
        self._moves = bounds[:, 0] - self._lost[:-1]
        self._lanes = stream.lanes if not (self._lost % stream.lanes).any() else 1
        # Ranks read whole lanes of the stream only if the lanes stay whole.
        takes_lanes = self._lanes == stream.lanes and self.expect_lanes is not None
        self.expect_lanes = self._expect_lanes if takes_lanes else None

    def over(self, stream: Any) -> Skip[T]:
        return Skip(stream, self.ranges)

    @property
    def lanes(self) -> int:
        """Lanes of the stream if they are preserved, else 1."""
        return self._lanes

    def own(self) -> dict[str, Any]:
        return {"ranges": [list(pair) for pair in self.ranges]}

    def shown(self) -> dict[str, Any]:
        return {"ranges": len(self.ranges), "positions": int(self._lost[-1]), "lanes": self._lanes}

    def inner(self, positions: IntArray, /) -> IntArray:
        return positions + self._lost[np.searchsorted(self._moves, positions, side="right")]

    def inner_one(self, position: int, /) -> int:
        position = as_position(position)
        return position + int(self._lost[np.searchsorted(self._moves, position, side="right")])

    def position_of(self, inner: int, /) -> int | None:
        """Return the position of the stream's position `inner`; None if it is skipped."""
        position = as_position(inner)
        before = int(np.searchsorted(self._moves + self._lost[:-1], position, side="right"))
        if before and position < self.ranges[before - 1][1]:
            return None
        return position - int(self._lost[before])

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        found = map(self.position_of, finder.positions(self.stream, self.inner_one(stop - 1) + 1))
        return (position for position in found if position is not None)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the ranges before `stop`, and the stream's positions."""
        reached = self.inner_one(stop - 1) + 1 if stop else 0
        before = [list(pair) for pair in self.ranges if pair[0] < reached]
        return ({"kind": "skip", "ranges": before} if before else {}), {"stream": reached}

    def _expect_lanes(self, positions: IntArray, world: int) -> None:
        expect_lanes(self.stream, self.inner(positions), world)


def _pairs(ranges: Iterable[Any] | range | IntArray) -> list[tuple[int, int]]:
    if isinstance(ranges, range):
        ranges = [ranges]
    if isinstance(ranges, np.ndarray) and ranges.ndim == 1:
        return [(position, position + 1) for position in as_positions(ranges).tolist()]
    return [_pair(item) for item in ranges]


def _pair(item: Any) -> tuple[int, int]:
    if isinstance(item, range):
        if item.step != 1:
            raise ConfigError("a range of positions must have step 1", found=item)
        item = (item.start, max(item.start, item.stop))
    try:
        start, stop = (operator.index(bound) for bound in item)
    except (TypeError, ValueError) as error:
        raise ConfigError("expected (start, stop) pairs of positions", found=repr(item)) from error
    if not 0 <= start <= stop <= MAX_SIZE:
        raise ConfigError("not a range of positions", found=f"({start}, {stop})", expected="0 <= start <= stop <= 2^62")
    return start, stop


def _merged(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges sorted, disjoint, not touching, without empty ones."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return tuple(merged)

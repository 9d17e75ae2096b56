"""Leaves some positions of a stream out, such as the batches of a loss spike."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from penstock._digest import digest
from penstock._index import as_position, as_positions
from penstock._kinds import Seedable
from penstock._resolved import Ahead, expect_lanes, substitutes_of
from penstock._tree import brief, html, line, tree
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.order.permutation import MAX_SIZE
from penstock.types import Batch, IntArray, Location, Schema

T = TypeVar("T")


class Skip(Generic[T]):
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

    def __init__(self, stream: Stream[T], ranges: Iterable[tuple[int, int] | range] | range | IntArray) -> None:
        self.stream = stream
        self.ranges = _merged(_pairs(ranges))
        bounds = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        self._lost = np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])])
        # From outer position `_moves[j]` on, j + 1 ranges lie before.
        self._moves = bounds[:, 0] - self._lost[:-1]
        self._ahead = Ahead(stream)
        self._fingerprint: str | None = None
        self.prefetch = self._ahead.prefetch
        self._lanes = stream.lanes if not (self._lost % stream.lanes).any() else 1
        # Ranks read whole lanes of the stream only if the lanes stay whole.
        takes_lanes = self._lanes == stream.lanes and getattr(stream, "expect_lanes", None) is not None
        self.expect_lanes = self._expect_lanes if takes_lanes else None

    @property
    def lanes(self) -> int:
        """Lanes of the stream if they are preserved, else 1."""
        return self._lanes

    @property
    def schema(self) -> Schema:
        """That of the stream."""
        return self.stream.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the stream's fingerprint and the ranges."""
        if self._fingerprint is None:
            self._fingerprint = digest("skip", self.ranges, self.stream.fingerprint)
        return self._fingerprint

    def __getitem__(self, position: int, /) -> T:
        return self.stream[self.inner_one(position)]

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        return self.stream.get_batch(self.inner(as_positions(positions)))

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        return self._ahead.resolve(self.inner(positions))

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at resolved positions as columns."""
        return self._ahead.batch(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[T]:
        """Return the samples at resolved positions."""
        return self._ahead.samples(resolved)

    def inner(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the corresponding positions in `stream`."""
        return positions + self._lost[np.searchsorted(self._moves, positions, side="right")]

    def inner_one(self, position: int, /) -> int:
        """Return `inner` for one position."""
        position = as_position(position)
        return position + int(self._lost[np.searchsorted(self._moves, position, side="right")])

    def locate(self, position: int, /) -> Location:
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        return replace(self.stream.locate(self.inner_one(position)), position=position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a substitute position of the same child, never a skipped one; see `SupportsSubstitutes`.

        Raises:
            ConfigError: the stream has no substitutes, or no more of them.
        """
        stream = substitutes_of(self.stream)
        inner = self.inner_one(position)
        tried = passed = 0
        while True:
            other = self.position_of(stream.substitute(inner, tried))
            tried += 1
            if other is None:
                continue
            if passed == attempt:
                return other
            passed += 1

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the ranges before `stop`, and the stream's positions."""
        reached = self.inner_one(stop - 1) + 1 if stop else 0
        before = [list(pair) for pair in self.ranges if pair[0] < reached]
        return ({"kind": "skip", "ranges": before} if before else {}), {"stream": reached}

    def seeded(self, seed: int, /) -> Skip[T]:
        """Return this with `seed`, if the stream was made without a seed."""
        return Skip(self.stream.seeded(seed), self.ranges) if isinstance(self.stream, Seedable) else self

    def children(self) -> Mapping[str, Stream[T]]:
        """Return the stream, under the name `stream`."""
        return {"stream": self.stream}

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the stream can be rebuilt."""
        return {"kind": "skip", "ranges": [list(pair) for pair in self.ranges], "stream": self.stream.recipe()}

    def summary(self) -> str:
        """Return one line: number of skipped ranges and positions."""
        params = {"ranges": len(self.ranges), "positions": int(self._lost[-1]), "lanes": self._lanes}
        return line("Skip", params, self._fingerprint)

    def _expect_lanes(self, positions: IntArray, world: int) -> None:
        expect_lanes(self.stream, self.inner(positions), world)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def position_of(self, inner: int, /) -> int | None:
        """Return the position of the stream's position `inner`; None if it is skipped."""
        position = as_position(inner)
        before = int(np.searchsorted(self._moves + self._lost[:-1], position, side="right"))
        if before and position < self.ranges[before - 1][1]:
            return None
        return position - int(self._lost[before])


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
    """Sorted, disjoint, not even touching, none empty."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return tuple(merged)

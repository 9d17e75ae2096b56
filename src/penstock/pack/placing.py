"""Best-fit decreasing by lengths, for as many pieces as fit on a disk.

Pieces are placed from the longest on, in the order of the data among equals, each into the window with the least
sufficient space. Pieces of one length are placed together: there is one step per existing pair of length and remaining
space, not per piece. A step places one or more pieces in each of several consecutive windows. Arrays as large as the
data are allocated by `new`, possibly as mapped files. They are filled in runs:

1. the number of pieces of each length: a first pass over the data, without memory;
2. the steps, which determine the number of pieces in each window, and its start;
3. the pieces by rank: a second pass, in which each length continues at its last rank;
4. step by step, each piece to its place in its window.

Memory: 32 bytes per step, 16 bytes per existing length, and about 20 MB.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import Derived
from penstock.types import IntArray

RUN_PIECES = 1 << 18
"""Pieces that are processed together."""

Runs: TypeAlias = Callable[[], Iterator[tuple[IntArray, IntArray]]]
"""Yields the pieces, run by run, each time it is called: int64[k] values, and their lengths, 1 or more."""

New: TypeAlias = Callable[[int, str], NDArray[Any]]
"""Allocator of arrays of zeros: (size, dtype) → array."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Pieces in each window.

    Attributes:
        starts: int64[n_windows + 1]: first piece of each window.
        values: int64[n_pieces]: the pieces, window by window, the longest first.
        lengths: int32[n_pieces]: their lengths.
    """

    starts: IntArray
    values: IntArray
    lengths: NDArray[np.int32]


def in_memory(count: int, dtype: str) -> NDArray[Any]:
    return np.zeros(count, dtype)


def new_of(derived: Derived | None) -> New:
    """Return the allocator of arrays for planning: mapped, if the cache supports it."""
    return getattr(derived, "scratch", in_memory)


def kept(derived: Derived, names: Sequence[tuple[str, str]], make: Callable[[], Sequence[NDArray[Any]]]) -> list[Any]:
    """Return cached arrays by key and dtype; missing ones are computed together, and stored in runs."""
    made: list[Sequence[NDArray[Any]]] = []

    def array_of(number: int) -> NDArray[Any]:
        if not made:
            made.append(make())
        return made[0][number]

    def feed(number: int, put: Callable[[NDArray[Any]], None]) -> None:
        found = array_of(number)
        for start in range(0, len(found), RUN_PIECES):
            put(found[start : start + RUN_PIECES])

    fed: Any = getattr(derived, "fed", None)
    if fed is None:
        return [derived.array(key, dtype, partial(array_of, at)) for at, (key, dtype) in enumerate(names)]
    return [fed(key, dtype, partial(feed, at)) for at, (key, dtype) in enumerate(names)]


def place(runs: Runs, capacity: int, new: New = in_memory) -> Placed:
    """Return the windows of `capacity` for pieces of 1 to `capacity`."""
    present, counts = _counted(runs())
    steps = _Steps(present[::-1].tolist(), counts[::-1].tolist(), capacity)
    starts, filled = steps.borders(new)
    values, lengths = new(int(starts[-1]), "int64"), new(int(starts[-1]), "int32")
    ranked = _ranked(runs(), present, counts, new)
    for length, rank, window, each, count in steps:
        for first in range(0, count, RUN_PIECES):
            number = np.arange(first, min(count, first + RUN_PIECES))
            windows, turn = window + number // each, number % each
            at = starts[windows] + filled[windows] + turn
            values[at] = ranked[rank + first : rank + first + len(number)]
            lengths[at] = length
        _add(filled, window, each, count)
    return Placed(starts, values, lengths)


def _counted(runs: Iterator[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """Return the existing lengths, ascending, and the number of pieces of each."""
    present, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for _, lengths in runs:
        more, how_many = np.unique(lengths, return_counts=True)
        joined, which = np.unique(np.concatenate([present, more]), return_inverse=True)
        added = np.zeros(len(joined), np.int64)
        np.add.at(added, which, np.concatenate([counts, how_many]))
        present, counts = joined, added
    return present, counts


def _ranked(runs: Iterator[tuple[IntArray, IntArray]], present: IntArray, counts: IntArray, new: New) -> IntArray:
    """Return the values from the longest piece on, in the order of the data among equals."""
    ranked = new(int(counts.sum()), "int64")
    next_rank = np.cumsum(counts[::-1])[::-1] - counts  # for each length: how many are longer
    for values, lengths in runs:
        order = np.argsort(lengths, kind="stable")
        which, first, how_many = np.unique(lengths[order], return_index=True, return_counts=True)
        at = np.searchsorted(present, which)
        ranked[np.repeat(next_rank[at] - first, how_many) + np.arange(len(order))] = values[order]
        next_rank[at] += how_many
    return ranked


class _Steps:
    """Steps of placing: `(length, rank, first window, pieces in each window, pieces)`."""

    def __init__(self, lengths: list[int], counts: list[int], capacity: int) -> None:
        self._flat = array("q")
        self._rank = 0
        rooms: dict[int, deque[tuple[int, int]]] = {}  # remaining room → runs of windows with that room
        occupied = 0  # bit r: some window has room r
        n_windows = 0
        for length, count in zip(lengths, counts, strict=True):
            left = count
            while left:
                fitting = occupied >> length
                if fitting:
                    room = length + (fitting & -fitting).bit_length() - 1
                    runs = rooms[room]
                    first, stop = runs.popleft()
                    taken = min(stop - first, left)
                    self._step(length, first, 1, taken)
                    if first + taken < stop:
                        runs.appendleft((first + taken, stop))
                    elif not runs:
                        occupied ^= 1 << room
                    occupied = _keep(rooms, occupied, room - length, (first, first + taken))
                    left -= taken
                    continue
                each = capacity // length
                opened = -(-left // each)
                self._step(length, n_windows, each, left)
                full = left // each
                occupied = _keep(rooms, occupied, capacity - each * length, (n_windows, n_windows + full))
                if full < opened:
                    room = capacity - (left - full * each) * length
                    occupied = _keep(rooms, occupied, room, (n_windows + full, n_windows + opened))
                n_windows, left = n_windows + opened, 0
        self.n_windows = n_windows

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int]]:
        flat = self._flat
        for at in range(0, len(flat), 5):
            yield flat[at], flat[at + 1], flat[at + 2], flat[at + 3], flat[at + 4]

    def borders(self, new: New) -> tuple[IntArray, NDArray[np.int32]]:
        """Return the first piece of each window, with the total at the end; and int32[n_windows] of zeros."""
        starts, filled = new(self.n_windows + 1, "int64"), new(self.n_windows, "int32")
        for _, _, window, each, count in self:
            _add(filled, window, each, count)
        for first in range(0, self.n_windows, RUN_PIECES):
            held = filled[first : first + RUN_PIECES]
            starts[first + 1 : first + 1 + len(held)] = np.cumsum(held, dtype=np.int64) + starts[first]
            held[:] = 0
        return starts, filled

    def _step(self, length: int, window: int, each: int, count: int) -> None:
        self._flat.extend((length, self._rank, window, each, count))
        self._rank += count


def _add(filled: NDArray[np.int32], window: int, each: int, count: int) -> None:
    full, rest = divmod(count, each)
    filled[window : window + full] += each
    if rest:
        filled[window + full] += rest


def _keep(rooms: dict[int, deque[tuple[int, int]]], occupied: int, room: int, run: tuple[int, int]) -> int:
    """Add a run of windows with `room` left; return the new `occupied`."""
    if room == 0 or run[0] == run[1]:
        return occupied
    rooms.setdefault(room, deque()).append(run)
    return occupied | 1 << room

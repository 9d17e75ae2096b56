"""Best-fit decreasing as version 0.1 planned it, all in memory: plans are still the same, bit for bit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.types import IntArray


@dataclass(frozen=True, slots=True)
class Plan:
    """Which pieces of documents each window holds.

    Attributes:
        window_starts: int64[n_windows + 1]: first piece of each window.
        piece_starts: int64[n_pieces]: first token of each piece, in the source.
        piece_lengths: int32[n_pieces]: its tokens.
    """

    window_starts: IntArray
    piece_starts: IntArray
    piece_lengths: NDArray[np.int32]


def plan_windows(doc_starts: IntArray, length: int) -> Plan:
    """The plan for documents that lie at `doc_starts` (int64[n_docs + 1]) and windows of `length` tokens.

    Memory: about 60 bytes a document while it is made.
    """
    starts, lengths = _pieces(doc_starts, length)
    order, window_of, n_windows = _by_falling_length(lengths, length)
    by_window = np.argsort(window_of, kind="stable")
    order = order[by_window]
    window_starts = np.zeros(n_windows + 1, np.int64)
    np.cumsum(np.bincount(window_of, minlength=n_windows), out=window_starts[1:])
    return Plan(window_starts, starts[order], lengths[order].astype(np.int32))


def place_by_length(lengths: IntArray, capacity: int) -> tuple[IntArray, int]:
    """int64[k]: the window of each of `lengths` (int64[k], 1 to `capacity`), and the number of windows."""
    order, window_of, n_windows = _by_falling_length(lengths, capacity)
    placed = np.empty(len(lengths), np.int64)
    placed[order] = window_of
    return placed, n_windows


def _by_falling_length(lengths: IntArray, capacity: int) -> tuple[IntArray, IntArray, int]:
    """The order from the longest on, the window of each in that order, and the number of windows."""
    # In the order of the data among equals.
    key = (capacity - lengths).astype(np.uint16 if capacity < 1 << 16 else np.uint32)
    order = np.argsort(key, kind="stable")
    present, counts = np.unique(lengths, return_counts=True)
    return order, *_place(present[::-1].tolist(), counts[::-1].tolist(), capacity)


def _pieces(doc_starts: IntArray, length: int) -> tuple[IntArray, IntArray]:
    """First token and length of every piece, in the order of the data."""
    starts, lengths = doc_starts[:-1].astype(np.int64), np.diff(doc_starts).astype(np.int64)
    filled = lengths > 0
    if not filled.all():
        starts, lengths = starts[filled], lengths[filled]
    if not len(lengths) or int(lengths.max()) <= length:
        return starts, lengths
    counts = -(-lengths // length)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    cut_starts = np.repeat(starts, counts) + number * length
    return cut_starts, np.minimum(np.repeat(starts + lengths, counts) - cut_starts, length)


def _place(lengths: list[int], counts: list[int], capacity: int) -> tuple[IntArray, int]:
    """Window of each piece, by its rank from the longest on, and the number of windows.

    Args:
        lengths: the lengths that occur, falling.
        counts: pieces of each.
        capacity: size of an empty window.
    """
    window_of = np.empty(sum(counts), np.int64)
    rooms: dict[int, deque[tuple[int, int]]] = {}  # room left → runs of windows with that room
    occupied = 0  # bit r: some window has room r
    n_windows = rank = 0
    for length, count in zip(lengths, counts, strict=True):
        left = count
        while left:
            fitting = occupied >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                runs = rooms[room]
                first, stop = runs.popleft()
                taken = min(stop - first, left)
                window_of[rank : rank + taken] = np.arange(first, first + taken)
                if first + taken < stop:
                    runs.appendleft((first + taken, stop))
                elif not runs:
                    occupied ^= 1 << room
                occupied = _keep(rooms, occupied, room - length, (first, first + taken))
                rank, left = rank + taken, left - taken
                continue
            each = capacity // length
            opened = -(-left // each)
            window_of[rank : rank + left] = n_windows + np.arange(left) // each
            full = left // each
            occupied = _keep(rooms, occupied, capacity - each * length, (n_windows, n_windows + full))
            if full < opened:
                room = capacity - (left - full * each) * length
                occupied = _keep(rooms, occupied, room, (n_windows + full, n_windows + opened))
            n_windows, rank, left = n_windows + opened, rank + left, 0
    return window_of, n_windows


def _keep(rooms: dict[int, deque[tuple[int, int]]], occupied: int, room: int, run: tuple[int, int]) -> int:
    """Add a run of windows with `room` left; returns the new `occupied`."""
    if room == 0 or run[0] == run[1]:
        return occupied
    rooms.setdefault(room, deque()).append(run)
    return occupied | 1 << room

"""Reads of runs of tokens that are stored in several pieces, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._columns import groups
from penstock.types import IntArray


def running(sizes: Sequence[int] | IntArray) -> IntArray:
    """Return int64[len(sizes) + 1], read-only: where each piece begins, and the sum."""
    begins = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=begins[1:])
    begins.flags.writeable = False
    return begins


def pieces(begins: IntArray, start: int, stop: int) -> list[tuple[int, int, int]]:
    """Return `(piece, start, stop)` of each piece with a part of `[start, stop)`, counted from the piece's first.

    Args:
        begins: int64[n + 1]: where each of n pieces begins, and the end of the last.
        start: first of the range.
        stop: its end.
    """
    first = int(np.searchsorted(begins, start, side="right")) - 1
    last = int(np.searchsorted(begins, stop, side="left"))
    bounds = begins[first : last + 1].tolist()
    return [
        (first + place, max(start - low, 0), min(stop, high) - low)
        for place, (low, high) in enumerate(pairwise(bounds))
        if low < high
    ]


def fill_windows(
    begins: IntArray,
    read: Callable[[int, IntArray, int], Sequence[NDArray[Any]]],
    starts: IntArray,
    outs: Sequence[NDArray[Any]],
) -> None:
    """Fill arrays of windows, one row each, by one read per piece; windows that span pieces are read piece by piece.

    Args:
        begins: as for `pieces`.
        read: gets a piece, first tokens in it and a length; returns an array of rows for each of `outs`.
        starts: int64[k]: first token of each window.
        outs: arrays [k, length].
    """
    length = outs[0].shape[1]
    if not len(starts) or not length:
        return
    first = np.searchsorted(begins, starts, side="right") - 1
    crossing = starts + length > begins[first + 1]
    whole = np.flatnonzero(~crossing)
    for chosen in groups(first[whole]):
        rows = whole[chosen]
        piece = int(first[rows[0]])
        for out, found in zip(outs, read(piece, starts[rows] - begins[piece], length), strict=True):
            out[rows] = found
    for row in np.flatnonzero(crossing).tolist():
        filled = 0
        for piece, low, high in pieces(begins, int(starts[row]), int(starts[row]) + length):
            for out, found in zip(outs, read(piece, np.array([low]), high - low), strict=True):
                out[row, filled : filled + high - low] = found[0]
            filled += high - low

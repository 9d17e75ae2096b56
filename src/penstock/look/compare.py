"""Two runs of sample digests, compared in order or as sets with repeats. The bound of memory is the same for any size.

Digests lie in scratch files of the cache folder, 16 bytes a sample. In order they are compared run by run. As sets
they are cut by their upper bits into parts of at most some 2 million; each part is gathered in one pass over both, and
equal digests become one row with its counts, so that samples that repeat take no room: some 400 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.look.digests import Digests
from penstock.types import IntArray

_RUN = 1 << 20
_PART = 1 << 21
_TABLE_BITS = 16


@dataclass(frozen=True, slots=True)
class Difference:
    """In what two runs differ.

    Attributes:
        only_in_a: samples of A without a partner in B.
        only_in_b: samples of B without one in A.
        first_in_a: int64[k], rising: indices of the first of them in A.
        first_in_b: the same in B.
    """

    only_in_a: int
    only_in_b: int
    first_in_a: IntArray
    first_in_b: IntArray


def compare_in_order(a: Digests, b: Digests, most: int) -> Difference:
    """Position by position; what one side has more of at its end has no partner.

    Args:
        a, b: uint64[n, 2].
        most: how many indices are given.
    """
    both, differing = min(len(a), len(b)), 0
    first: list[int] = []
    for start in range(0, both, _RUN):
        stop = min(both, start + _RUN)
        places = np.flatnonzero((a[start:stop] != b[start:stop]).any(1))
        differing += len(places)
        first += (places[: most - len(first)] + start).tolist()
    more = [list(range(both, min(len(one), both + most - len(first)))) for one in (a, b)]
    in_a, in_b = (np.array(first + one, np.int64) for one in more)
    return Difference(differing + len(a) - both, differing + len(b) - both, in_a, in_b)


def compare_as_sets(a: Digests, b: Digests, most: int) -> Difference:
    """Whatever the order: each sample has at most one partner, so three of one and two of the other leave one.

    Of samples that are equal, the first one stands for them all.
    """
    only_in_a = only_in_b = 0
    first_in_a = first_in_b = np.empty(0, np.int64)
    for low, high in _parts(_table(a) + _table(b)):
        part = _gathered(a, b, low, high)
        more, less = part.in_a > part.in_b, part.in_b > part.in_a
        only_in_a += int((part.in_a - part.in_b)[more].sum())
        only_in_b += int((part.in_b - part.in_a)[less].sum())
        first_in_a = np.sort(np.concatenate([first_in_a, part.first_in_a[more]]))[:most]
        first_in_b = np.sort(np.concatenate([first_in_b, part.first_in_b[less]]))[:most]
    return Difference(only_in_a, only_in_b, first_in_a, first_in_b)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Distinct digests with their counts: uint64[n, 2], int64[n] each; an index is meant where its count is not 0."""

    digests: Digests
    in_a: IntArray
    in_b: IntArray
    first_in_a: IntArray
    first_in_b: IntArray


_NEVER = np.iinfo(np.int64).max


def _gathered(a: Digests, b: Digests, low: int, high: int) -> _Rows:
    """The rows whose upper bits are in `[low, high)`."""
    parts: list[_Rows] = []
    held = 0
    for side, digests in enumerate((a, b)):
        for start in range(0, len(digests), _RUN):
            run = digests[start : start + _RUN]
            upper = run[:, 0] >> np.uint64(64 - _TABLE_BITS)
            places = np.flatnonzero((upper >= low) & (upper < high))
            if not len(places):
                continue
            ones, none = np.ones(len(places), np.int64), np.zeros(len(places), np.int64)
            here, nowhere = places + start, np.full(len(places), _NEVER)
            counts = (ones, none, here, nowhere) if side == 0 else (none, ones, nowhere, here)
            parts.append(_Rows(run[places], *counts))
            held += len(places)
            if held > _PART:  # repeats of one sample, or they would not be so many
                parts = [_reduced(parts)]
                held = len(parts[0].digests)
    return _reduced(parts)


def _reduced(parts: list[_Rows]) -> _Rows:
    """One row a digest."""
    digests = np.concatenate([np.empty((0, 2), np.uint64), *(one.digests for one in parts)])
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    is_first = np.ones(len(digests), np.bool_)
    is_first[1:] = (digests[1:] != digests[:-1]).any(1)
    groups = np.flatnonzero(is_first)

    def each(columns: list[IntArray], function: np.ufunc) -> NDArray[np.int64]:
        if not len(groups):
            return np.empty(0, np.int64)
        return function.reduceat(np.concatenate(columns)[order], groups)

    return _Rows(
        digests[groups],
        each([one.in_a for one in parts], np.add),
        each([one.in_b for one in parts], np.add),
        each([one.first_in_a for one in parts], np.minimum),
        each([one.first_in_b for one in parts], np.minimum),
    )


def _table(digests: Digests) -> IntArray:
    """int64[2^16]: digests by their upper bits."""
    table = np.zeros(1 << _TABLE_BITS, np.int64)
    for start in range(0, len(digests), _RUN):
        upper = (digests[start : start + _RUN, 0] >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
        table += np.bincount(upper, minlength=len(table))
    return table


def _parts(table: IntArray) -> Iterator[tuple[int, int]]:
    """Ranges of the upper bits, each with at most `_PART` digests or of one value."""
    ends = np.cumsum(table)
    low, before = 0, 0
    while low < len(table):
        high = max(low + 1, int(np.searchsorted(ends, before + _PART, side="right")))
        yield low, high
        low, before = high, int(ends[high - 1])

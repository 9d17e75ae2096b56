"""Lengths of samples: documents in tokens, other samples in stored bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from penstock._access import extents_of
from penstock._kinds import is_token_source
from penstock.check.summary import length_summary
from penstock.errors import PenstockError
from penstock.formats._exclusions import stored
from penstock.types import Extent, IntArray
from penstock.view.facts.bounds import at_hand

EXACT = 1 << 20
"""Up to this many samples, all lengths in an index are read."""

RUNS, IN_A_RUN = 512, 8
"""Number and size of evenly spread runs that are read of more samples: each run is one page of a mapped index."""

_MOST_EVEN = 20
"""Bins of equal width."""

PLACES, REMOTE_PLACES = 1024, 16
"""Limits on requests for extents of samples, one by one."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples with a length in `[start, stop]`."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of samples.

    Attributes:
        unit: `"tokens"`, or stored `"bytes"`.
        mean: mean of the examined samples; `quantiles`: share → length; `bins`: of lengths 0, 1, 2 to 3, 4 to 7, …, or
            finer ones.
        estimated_from: number of examined samples, if not all; `of`: number of samples.
    """

    unit: str
    mean: float
    quantiles: tuple[tuple[float, int], ...]
    bins: tuple[Bin, ...]
    how: str
    estimated_from: int | None
    of: int


_Found: TypeAlias = tuple[IntArray, str, str, int]
"""Examined lengths, their unit, how they were found, and the number of samples."""


def lengths_of(
    source: Any, count: int, *, size_bytes: int | None, is_local: bool, fine: bool = False
) -> Lengths | None:
    """Return the lengths of samples from an index; None if they are unknown without a scan.

    Args:
        source: the dataset.
        count: number of its samples.
        size_bytes: its size, None if unknown.
        is_local: whether it is on this machine.
        fine: use bins that fit the range of the lengths instead of powers of two.
    """
    if not count:
        return None
    whole = stored(source)
    try:
        ranges = getattr(whole, "line_ranges", None)
        if is_token_source(whole):
            found = _of_documents(whole, count, size_bytes)
        elif ranges is not None:
            found = _of_lines(ranges, size_bytes)
        else:
            found = _of_places(whole, count, PLACES if is_local else REMOTE_PLACES)
        return None if found is None else _summed(*found, fine=fine)
    except PenstockError:  # document borders are unknown, or an index is damaged
        return None


def chosen(count: int) -> IntArray:
    """Return int64[k], ascending: the examined samples, which are all or evenly spread runs."""
    if count <= EXACT:
        return np.arange(count, dtype=np.int64)
    begins = np.linspace(0, count - IN_A_RUN, RUNS).astype(np.int64)
    return (begins[:, None] + np.arange(IN_A_RUN, dtype=np.int64)).reshape(-1)


def _of_documents(source: Any, count: int, size_bytes: int | None) -> _Found | None:
    starts: IntArray | None = at_hand(lambda: source.doc_starts, size_bytes)
    if starts is None:
        return None
    count = len(starts) - 1
    at = chosen(count)
    found = np.diff(starts) if len(at) == count else np.asarray(starts[at + 1] - starts[at])
    return np.asarray(found, np.int64), "tokens", "index", count


def _of_lines(ranges: Any, size_bytes: int | None) -> _Found | None:
    lines: IntArray | None = at_hand(ranges, size_bytes)
    if lines is None or not len(lines):
        return None
    return np.asarray(lines[chosen(len(lines)), 1], np.int64), "bytes", "index", len(lines)


def _of_places(source: Any, count: int, most: int) -> _Found | None:
    """Return lengths from the extents of all or some samples; None if samples share a block."""
    if count > most:
        at = np.unique(np.linspace(0, count - 2, most // 2).astype(np.int64)[:, None] + np.arange(2))
    else:
        at = np.arange(count)
    found: list[int] = []
    before: tuple[Extent, ...] | None = None
    for index in at.tolist():
        extents = at_hand(functools.partial(extents_of, source, index), None)
        if extents is None:
            return None
        found.append(sum(one.length_bytes for one in extents))
        if found[-1] and extents == before:
            return None
        before = extents
    return np.array(found, np.int64), "bytes", "sample offsets", count


def _summed(lengths: IntArray, unit: str, how: str, of: int, *, fine: bool) -> Lengths | None:
    found = length_summary(lengths)
    if not found:
        return None
    bins = _fine_bins(lengths) if fine else tuple(Bin(*one) for one in found["histogram"])
    quantiles = tuple((float(share), value) for share, value in found["quantiles"].items())
    return Lengths(unit, found["mean"], quantiles, bins, how, len(lengths) if len(lengths) < of else None, of)


def _fine_bins(lengths: IntArray) -> tuple[Bin, ...]:
    """Return 8 to 40 bins with round borders: of equal width, or for a wide range two for each power of two."""
    low, high = int(lengths.min()), int(lengths.max())
    if high > 8 * max(low, 1) and high > _MOST_EVEN:
        powers = [(2 << bit, 3 << bit) for bit in range(high.bit_length())]
        borders = [0, 1, *(border for pair in powers for border in pair)]
    else:
        size = 10 ** len(str(max(0, (high - low) // _MOST_EVEN)))
        step = next(one for one in (size // 10, size // 5, size // 2, size) if one * _MOST_EVEN >= high - low and one)
        borders = [step * at for at in range(low // step, high // step + 2)]
    first = next(at for at in range(len(borders)) if borders[at + 1] > low)
    last = next(at for at in range(len(borders)) if borders[at] > high)
    borders = borders[first : last + 1]
    counts = np.histogram(lengths, np.array(borders, np.float64))[0].tolist()
    return tuple(
        Bin(start, stop - 1, count) for start, stop, count in zip(borders[:-1], borders[1:], counts, strict=True)
    )

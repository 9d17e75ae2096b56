"""Copies of runs of different lengths between arrays, for shuffling and filtering of documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.types import IntArray

_FEW = 6
_STEP_BYTES = 1 << 17  # keeps both arrays in a core's cache
_ROWS = 1 << 16


def copy_runs(
    source: NDArray[Any], starts: IntArray, lengths: IntArray, target: NDArray[Any], places: IntArray
) -> None:
    """Copy `source[starts[i] : starts[i] + lengths[i]]` to `target[places[i] : …]`, for each i.

    Runs of equal length are copied together, so that many short runs cost no more than their bytes. Memory: about
    10 MB.

    Args:
        source: any[n], contiguous.
        starts: int64[k]; each run must be inside `source`, which isn't checked.
        lengths: int64[k].
        target: any[m], contiguous, of the same dtype.
        places: int64[k]; the runs must be inside `target` and not overlap, which isn't checked.
    """
    for first in range(0, len(starts), _ROWS):
        some = slice(first, first + _ROWS)
        _copy_some(source, starts[some], lengths[some], target, places[some])


def _copy_some(
    source: NDArray[Any], starts: IntArray, lengths: IntArray, target: NDArray[Any], places: IntArray
) -> None:
    by_length = argsort_small(lengths)
    lengths, starts, places = lengths[by_length], starts[by_length], places[by_length]
    borders = np.flatnonzero(np.diff(lengths, prepend=-1, append=-1))
    counts = np.diff(borders)
    few = np.repeat(counts < _FEW, counts)
    _copy_one_by_one(source, starts[few], lengths[few], target, places[few])
    many = counts >= _FEW
    for first, count in zip(borders[:-1][many].tolist(), counts[many].tolist(), strict=True):
        length = int(lengths[first])
        if length == 0:
            continue
        read, written = _windows(source, length), _windows(target, length)
        step = max(1, _STEP_BYTES // (length * source.itemsize))
        for row in range(first, first + count, step):
            rows = slice(row, min(first + count, row + step))
            written[places[rows]] = read[starts[rows]]


def argsort_small(values: IntArray) -> IntArray:
    """Return int64[k]: a stable order of nonnegative values; much faster if all are below 2^16."""
    small = len(values) > 0 and int(values.max()) < 1 << 16
    return np.argsort(values.astype(np.uint16) if small else values, kind="stable")


def _copy_one_by_one(
    source: NDArray[Any], starts: IntArray, lengths: IntArray, target: NDArray[Any], places: IntArray
) -> None:
    read, written, width = byte_view(source), byte_view(target), source.itemsize
    stops, ends = (starts + lengths) * width, (places + lengths) * width
    copies = ((starts * width).tolist(), stops.tolist(), (places * width).tolist(), ends.tolist())
    for start, stop, place, end in zip(*copies, strict=True):
        written[place:end] = read[start:stop]


def _windows(array: NDArray[Any], length: int) -> NDArray[Any]:
    """Return any[len - length + 1, length]: a view of every run of `length`."""
    shape = (len(array) - length + 1, length)
    return np.ndarray(shape, array.dtype, array.data, 0, (array.itemsize, array.itemsize))

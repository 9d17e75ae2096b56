"""Checks of indices and positions from callers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types import IntArray

# Up to this many integers Python is faster than a numpy call.
_FEW = 64


def as_index(index: int, length: int) -> int:
    """Convert `index` to a number in `[0, length)`; negative ones count from the end.

    Args:
        index: index of a sample.
        length: number of samples.

    Raises:
        IndexError: `index` is outside `[-length, length)`.

    Examples:
        >>> from penstock.formats.kit import as_index
        >>> as_index(-1, 10)
        9
    """
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"index {place} is out of range for {length} samples")
    return place + length if place < 0 else place


def as_indices(indices: Sequence[int] | IntArray, length: int) -> IntArray:
    """Convert the indices of a batch to int64[k], each in `[0, length)`.

    Args:
        indices: integers.
        length: number of samples.

    Raises:
        IndexError: an index is negative, or `length` or more.

    Examples:
        >>> from penstock.formats.kit import as_indices
        >>> as_indices([3, 1], 10)
        array([3, 1])
    """
    array = _as_int64(indices)
    if array.size:
        low, high = _ends(array)
        if low < 0 or high >= length:
            raise IndexError(f"index {low if low < 0 else high} is out of range for {length} samples")
    return array


def as_position(position: int) -> int:
    """Return a position of an endless stream.

    Raises:
        IndexError: the position is negative.
    """
    place = operator.index(position)
    if place < 0:
        raise IndexError(f"position {place} is negative")
    return place


def as_positions(positions: Sequence[int] | IntArray) -> IntArray:
    """Return int64[k]: positions of an endless stream.

    Raises:
        IndexError: a position is negative.
    """
    array = _as_int64(positions)
    if array.size and (low := _ends(array)[0]) < 0:
        raise IndexError(f"position {low} is negative")
    return array


def _ends(array: IntArray) -> tuple[int, int]:
    if array.size > _FEW:
        return int(array.min()), int(array.max())
    few: list[int] = array.tolist()
    return min(few), max(few)


def _as_int64(values: Sequence[int] | NDArray[Any]) -> IntArray:
    array = np.asarray(values)
    if array.dtype == np.int64 and array.ndim == 1:
        return array
    if array.ndim != 1:
        raise TypeError(f"expected a one-dimensional array of integers, found shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "uO":
        beyond = [value for value in array.tolist() if isinstance(value, int) and not -1 << 63 <= value < 1 << 63]
        if beyond:
            raise IndexError(f"{beyond[0]} doesn't fit in 64 bits")
    if array.dtype.kind not in "iu":
        raise TypeError(f"expected integers, found {array.dtype}")
    return array.astype(np.int64)

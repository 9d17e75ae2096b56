"""Ranges of rows of several datasets, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.reshape.rows import BLOCK_ROWS, PIECE_UNITS, Rows
from penstock.types import IntArray


class JoinedRows:
    """Ranges of rows of several datasets, one after another.

    Args:
        parts: rows of one dtype, each with the index of the first row and of the one behind the last.
    """

    __slots__ = ("_bases", "_borders", "_firsts", "_parts", "dtype", "place")

    def __init__(self, parts: Sequence[tuple[Rows, int, int]]) -> None:
        self._parts = [rows for rows, _, _ in parts]
        self._firsts = [first for _, first, _ in parts]
        self._borders = np.concatenate([[0], np.cumsum([stop - first for _, first, stop in parts])])
        sizes = [-(-_space(rows) // PIECE_UNITS) * PIECE_UNITS for rows in self._parts]
        self._bases = np.concatenate([[0], np.cumsum(sizes)])
        self.dtype, self.place = self._parts[0].dtype, self._parts[0].place

    def __len__(self) -> int:
        return int(self._borders[-1])

    def borders(self) -> list[int]:
        """Where one part ends and the next begins."""
        return self._borders.tolist()

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        """(first unit in the space of all parts, units) of rows."""
        indices = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        starts, lengths = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        parts = np.searchsorted(self._borders, indices, side="right") - 1
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            own_starts, lengths[here] = self._parts[part].ranges(
                indices[here] - self._borders[part] + self._firsts[part]
            )
            starts[here] = own_starts + self._bases[part]
        return starts, lengths

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Units of one part."""
        part, base = self._part_at(start)
        return part.read(start - base, stop - base)

    def can_view(self) -> bool:
        """Whether all parts can."""
        return all(rows.can_view() for rows in self._parts)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Units of one part, mapped."""
        part, base = self._part_at(start)
        return part.view(start - base, stop - base)

    def prove(self, first: int, stop: int) -> None:
        """That rows `[first, stop)` are what the side files of their parts know; raises `Corrupt`."""
        borders = zip(self._parts, self._borders.tolist(), self._borders[1:].tolist(), self._firsts, strict=False)
        for rows, low, high, own in borders:
            if first < high and low < stop:
                rows.prove(max(first, low) - low + own, min(stop, high) - low + own)

    def release(self) -> None:
        """Give back mapped pages of all parts."""
        for rows in self._parts:
            rows.release()

    def _part_at(self, start: int) -> tuple[Rows, int]:
        part = int(np.searchsorted(self._bases, start, side="right")) - 1
        return self._parts[part], int(self._bases[part])


def _space(rows: Rows) -> int:
    """A number of units that no row of these goes beyond."""
    ends = [0]
    for at in range(0, len(rows), BLOCK_ROWS):
        starts, lengths = rows.ranges(slice(at, min(len(rows), at + BLOCK_ROWS)))
        ends.append(int((starts + lengths).max()))
    return max(ends)

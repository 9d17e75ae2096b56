"""Borders of a few documents of a token source, from those that can tell them without `doc_starts` of all."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from penstock.types import IntArray


class SparseBorders(Protocol):
    """A token source whose documents are far more than are read of it, and that finds a few of them alone."""

    def borders_of(self, first: int, stop: int, /) -> IntArray:
        """int64[stop - first + 1]: `doc_starts[first : stop + 1]`."""
        ...

    def borders_at(self, indices: IntArray, /) -> tuple[IntArray, IntArray]:
        """int64[k], int64[k]: first token of each of these documents, and of the one behind it."""
        ...

    def borders_around(self, start: int, stop: int, /) -> tuple[int, IntArray]:
        """A document that begins at or before token `start`, and the borders from there up to `stop` or beyond."""
        ...


def borders_of(source: Any, first: int, stop: int) -> IntArray:
    """int64[stop - first + 1]: first token of each document in `[first, stop)`, and of the one behind them."""
    find = getattr(source, "borders_of", None)
    return np.asarray(source.doc_starts[first : stop + 1] if find is None else find(first, stop), np.int64)


def borders_at(source: Any, indices: IntArray) -> tuple[IntArray, IntArray]:
    """int64[k], int64[k]: first token of each of these documents, and of the one behind it."""
    find = getattr(source, "borders_at", None)
    if find is not None:
        return find(indices)
    starts = source.doc_starts
    return starts[indices], starts[indices + 1]


def borders_around(source: Any, start: int, stop: int) -> tuple[int, IntArray]:
    """A document that begins at or before token `start`, and int64[k]: the borders from there up to `stop` at least."""
    find = getattr(source, "borders_around", None)
    return (0, source.doc_starts) if find is None else find(start, stop)

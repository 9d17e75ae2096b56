"""Borders of a few documents of a token source, if possible without computing all `doc_starts`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.types import IntArray


class SparseBorders(Protocol):
    """Token source that finds the borders of a few documents among very many."""

    def borders_of(self, first: int, stop: int, /) -> IntArray:
        """Return `doc_starts[first : stop + 1]`, int64[stop - first + 1]."""
        ...

    def borders_at(self, indices: IntArray, /) -> tuple[IntArray, IntArray]:
        """Return int64[k], int64[k]: the start and the end of each of these documents."""
        ...

    def borders_around(self, start: int, stop: int, /) -> tuple[int, IntArray]:
        """Return a document at or before token `start`, and the borders from its start up to `stop` or beyond."""
        ...


def borders_of(source: Any, first: int, stop: int) -> IntArray:
    """Return int64[stop - first + 1]: the start of each document in `[first, stop)`, and the end of the last one."""
    find = getattr(source, "borders_of", None)
    return np.asarray(source.doc_starts[first : stop + 1] if find is None else find(first, stop), np.int64)


def borders_at(source: Any, indices: IntArray) -> tuple[IntArray, IntArray]:
    """Return int64[k], int64[k]: the start and the end of each of these documents."""
    find = getattr(source, "borders_at", None)
    if find is not None:
        return find(indices)
    starts = source.doc_starts
    return starts[indices], starts[indices + 1]


def borders_around(source: Any, start: int, stop: int) -> tuple[int, IntArray]:
    """Return a document at or before token `start`, and int64[k]: the borders from its start up to `stop` at least."""
    find = getattr(source, "borders_around", None)
    return (0, source.doc_starts) if find is None else find(start, stop)


def checked_starts(starts: IntArray, length: int, num_tokens: int) -> IntArray:
    """Return int64[k]: starts of windows of `length`; raise `IndexError` if one isn't inside the tokens."""
    starts = np.asarray(starts)
    if starts.ndim != 1 or (starts.dtype.kind not in "iu" and starts.size):
        raise TypeError(f"starts must be int64[k], not {starts.dtype} of shape {starts.shape}")
    if length < 0:
        raise ValueError(f"a window of {length} tokens")
    if starts.size:
        low, high = int(starts.min()), int(starts.max())
        if low < 0 or high > num_tokens - length:
            start = low if low < 0 else high
            raise IndexError(f"tokens [{start}, {start + length}) are not all in [0, {num_tokens})")
    return starts.astype(np.int64, copy=False)


def document_flags(source: Any, starts: IntArray, length: int) -> NDArray[np.bool_]:
    """Return bool[len(starts), length]: whether each token of each window is the first of a document of `source`."""
    gather_starts = getattr(source, "gather_starts", None)
    return (
        flags_of_starts(source.doc_starts, starts, length) if gather_starts is None else gather_starts(starts, length)
    )


def flags_of_starts(doc_starts: IntArray, starts: IntArray, length: int) -> NDArray[np.bool_]:
    """Return bool[len(starts), length]: whether each token of each window is the first of a document.

    Looks up only the borders inside the windows, so `doc_starts` may be a mapped file of any size.

    Args:
        doc_starts: int64[n_docs + 1]; the last entry is the number of tokens.
        starts: int64[k]: first token of each window.
        length: tokens per window.

    Raises:
        IndexError: a window isn't inside the tokens.
    """
    return flags_between(doc_starts, checked_starts(starts, length, int(doc_starts[-1])), length)


def flags_between(borders: IntArray, starts: IntArray, length: int) -> NDArray[np.bool_]:
    """Return bool[len(starts), length]: which tokens of the windows are in `borders`.

    Args:
        borders: int64[n], ascending: every border that is inside one of the windows, and any others.
        starts: int64[k]: first token of each window.
        length: tokens per window.
    """
    flags = np.zeros((len(starts), length), np.bool_)
    if len(starts) == 1:  # a fifth of the calls below: for windows that are read one by one
        start = int(starts[0])
        first, stop = borders.searchsorted((start, start + length))
        flags[0, borders[first:stop] - start] = True
        return flags
    first = np.searchsorted(borders, starts)
    counts = np.searchsorted(borders, starts + length) - first
    row = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    places = borders[np.arange(len(row)) + (first - before)[row]]
    flags[row, places - starts[row]] = True
    return flags


_SAMPLED_RUNS, _RUN_TOKENS = 64, 1 << 20


def had_eos_borders(source: Any) -> bool:
    """Return whether version 0.2.0 cut labelled windows of this source at its EOS id, ignoring its index."""
    return getattr(source, "had_eos_borders", getattr(source, "gather_starts", None) is None)


def ends_at(source: Any, eos_id: int) -> bool:
    """Return whether documents begin exactly after each `eos_id`.

    Compares all tokens if there are at most 2^26, else 64 runs of 2^20.
    """
    total = source.num_tokens
    runs = -(-total // _RUN_TOKENS)
    for run in range(runs) if runs <= _SAMPLED_RUNS else np.linspace(0, runs - 1, _SAMPLED_RUNS).astype(int).tolist():
        start = max(run * _RUN_TOKENS - 1, 0)
        tokens = source.tokens(start, min(total, (run + 1) * _RUN_TOKENS))
        flags = document_flags(source, np.array([start]), len(tokens))[0]
        if not np.array_equal(tokens[:-1] == eos_id, flags[1:]):
            return False
    return True

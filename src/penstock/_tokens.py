"""Parts of token sources: document borders, reads of tokens in several pieces, planes, and hidden runs of tokens.

Planes are per-token arrays stored next to the tokens, such as loss masks. A value belongs to its token. In windows with
labels a plane called `loss_mask` is that of the target, and is multiplied with the window's own. Every other plane is
that of the input, 0 if the input is artificial.

Hidden runs are the tokens of excluded documents. Each id is replaced, and nothing moves: borders of documents,
positions and lengths are unchanged, and are computed from the stored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import groups
from penstock.errors import ConfigError
from penstock.types import Batch, Field, IntArray, TokenArray


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
    first = int(begins.searchsorted(start, "right")) - 1
    last = int(begins.searchsorted(stop))
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


@dataclass(frozen=True, slots=True)
class Hidden:
    """Ascending, disjoint runs of tokens, none of them empty.

    Attributes:
        starts: int64[m]: first token of each.
        stops: int64[m]: end of each.
        ids: int64[m]: the replacement id of each.
    """

    starts: IntArray
    stops: IntArray
    ids: IntArray

    def has(self, tokens: IntArray) -> NDArray[np.bool_]:
        """Return bool[k]: whether each of these tokens (int64[k]) is hidden."""
        return np.searchsorted(self.starts, tokens, side="right") > np.searchsorted(self.stops, tokens, side="right")

    def read(self, read: Callable[[int, int], NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        """Return the visible tokens `[start, stop)`; those of `read` themselves if none of them is hidden."""
        tokens = read(start, stop)
        first, last = self._between(np.array([start]), len(tokens))
        if first[0] >= last[0]:
            return tokens
        seen = tokens.copy()
        self._cover_row(seen, start, int(first[0]), int(last[0]))
        seen.flags.writeable = False
        return seen

    def gather(self, gather: Callable[[IntArray, int], NDArray[Any]], starts: IntArray, length: int) -> NDArray[Any]:
        """Return the visible windows, [k, length], of those that `gather` returns."""
        return self.cover_windows(gather(starts, length), starts)

    def cover_windows(self, blocks: TokenArray, starts: IntArray) -> TokenArray:
        """Return the visible windows, uint[k, L], that begin at `starts`; modified in place if possible."""
        first, stop = self._between(starts, blocks.shape[1])
        rows = np.flatnonzero(first < stop)
        if rows.size and not blocks.flags.writeable:
            blocks = blocks.copy()
        for row in rows.tolist():
            self._cover_row(blocks[row], int(starts[row]), int(first[row]), int(stop[row]))
        return blocks

    def mask(self, starts: IntArray, length: int) -> NDArray[np.bool_] | None:
        """Return bool[k, length]: which tokens of the windows at `starts` are hidden; None if none is."""
        first, stop = self._between(starts, length)
        rows = np.flatnonzero(first < stop)
        if not rows.size:
            return None
        found = np.zeros((len(starts), length), np.bool_)
        for row in rows.tolist():
            for run in range(int(first[row]), int(stop[row])):
                begin, end = self._within(run, int(starts[row]), length)
                found[row, begin:end] = True
        return found

    def shifted(self, by: int, start: int = 0, stop: int = 1 << 62) -> Hidden:
        """Return the runs in `[start, stop)`, cut to that range, with `by` added to their places."""
        starts, stops = np.maximum(self.starts, start), np.minimum(self.stops, stop)
        kept = starts < stops
        return Hidden(starts[kept] + by, stops[kept] + by, self.ids[kept])

    def _between(self, starts: IntArray, length: int) -> tuple[IntArray, IntArray]:
        """Return int64[k] twice: the range of runs that overlap each window."""
        return (
            np.searchsorted(self.stops, starts, side="right"),
            np.searchsorted(self.starts, starts + length, side="left"),
        )

    def _within(self, run: int, start: int, length: int) -> tuple[int, int]:
        return max(int(self.starts[run]) - start, 0), min(int(self.stops[run]) - start, length)

    def _cover_row(self, row: TokenArray, start: int, first: int, stop: int) -> None:
        for run in range(first, stop):
            begin, end = self._within(run, start, len(row))
            row[begin:end] = self.ids[run]


def join_hidden(parts: list[Hidden]) -> Hidden:
    """Return the runs of several concatenated token sources."""
    return Hidden(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("starts", "stops", "ids")))


NO_RUNS = Hidden(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def stored_tokens(source: Any) -> tuple[Any, Hidden | None]:
    """Return the stored tokens of a source, only for borders, and the hidden ones; itself and None without a list."""
    stored: Callable[[], tuple[Any, Hidden]] | None = getattr(source, "stored_tokens", None)
    return (source, None) if stored is None else stored()


def without_loss(batch: dict[str, Any], hidden: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return a batch of windows without hidden targets in the loss.

    Args:
        batch: columns with `loss_mask` bool[k, L].
        hidden: bool[k, L]: which targets are hidden; None for none.
    """
    return batch if hidden is None else {**batch, "loss_mask": batch["loss_mask"] & ~hidden}


LOSS_MASK = "loss_mask"
DROP = "Drop the planes: planes=None (--planes none)"
"""Hint for operations that don't support planes."""


class Plane(Protocol):
    """One value per token of a source."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return [stop - start]: the values of the tokens `[start, stop)`."""
        ...

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """Return [len(starts), length]: one window per row."""
        ...


def planes_of(source: Any) -> Mapping[str, Plane]:
    """Return the planes of a token source by name; empty without planes."""
    return getattr(source, "planes", None) or {}


def require_no_planes(source: Any, what: str, path: str | None = None) -> None:
    """Raise `ConfigError` if a source has planes, which would be lost silently."""
    found = planes_of(source)
    if found:
        raise ConfigError(f"{what} can't have planes", path=path, found=", ".join(found), hint=DROP)


def plane_fields(source: Any, length: int | None, *, labels: bool = False) -> tuple[Field, ...]:
    """Return the fields of planes in windows of `length` tokens, or documents; labels already contain a `loss_mask`."""
    planes = planes_of(source).items()
    return tuple(
        Field(name, "ndarray", one.dtype.name, (length,)) for name, one in planes if not (labels and name == LOSS_MASK)
    )


def has_input_planes(source: Any) -> bool:
    """Return whether windows with labels contain planes of the inputs."""
    return not {*planes_of(source)} <= {LOSS_MASK}


def add_planes(
    batch: Batch, source: Any, take: Callable[[Plane, bool], NDArray[Any]], *, labels: bool = False
) -> Batch:
    """Return a batch of windows with the planes of their source.

    Args:
        batch: columns.
        source: token source of the windows.
        take: returns [k, length] of a plane: of the targets if its second argument is true, else of the inputs.
        labels: whether the batch has labels: a `loss_mask` plane is only used if they have one.
    """
    for name, plane in planes_of(source).items():
        if not labels or name != LOSS_MASK:
            batch[name] = take(plane, False)
        elif LOSS_MASK in batch:
            batch[name] = batch[name] & (take(plane, True) != 0)
    return batch


def of_inputs(values: NDArray[Any], starts: NDArray[np.bool_]) -> NDArray[Any]:
    """Return [k, L]: values of the previous token, as inputs of `labels="start-zero"`: 0 at the start of a document."""
    moved = np.zeros_like(values)
    np.copyto(moved[:, 1:], values[:, :-1], where=~starts[:, 1:])
    return moved

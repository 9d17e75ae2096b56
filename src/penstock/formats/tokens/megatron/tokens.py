"""Tokens of a `.bin` in the order of the file, or in that of the index where the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from penstock._borders import checked_starts
from penstock.formats.tokens.ids import FileIds
from penstock.formats.tokens.megatron.layout import Kind, bin_path
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile
from penstock.types import Extent, IntArray, ReadMode, TokenArray


class Ids(Protocol):
    """A run of ids."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def num_tokens(self) -> int: ...

    def tokens(self, start: int, stop: int) -> TokenArray: ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray: ...

    def extent(self, start: int, stop: int) -> Extent: ...

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]: ...


def file_ids(
    store: Store,
    prefix: str,
    kind: Kind,
    num_tokens: int,
    read: ReadMode,
    *,
    trusted: bool = False,
    opened: OpenedFile | None = None,
) -> FileIds:
    """The first tokens of a `.bin`; `trusted`: all are known to be ids; `opened`: as for `TokenFile`."""
    return FileIds(store, bin_path(prefix), 0, num_tokens, kind.stored, read, trusted=trusted, opened=opened)


class ScatteredIds:
    """The same ids in the order of the index, where sequences have gaps between them or lie in another order.

    Each sequence is a read of its own, so windows cost several times as much.

    Args:
        file: the ids of the file.
        starts: int64[n_sequences + 1]: first token of each sequence in the order of the index, and the end.
        places: int64[n_sequences]: first token of each in the file.
    """

    __slots__ = ("_file", "_places", "_starts")

    def __init__(self, file: FileIds, starts: IntArray, places: IntArray) -> None:
        self._file = file
        self._starts = starts
        self._places = places

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32."""
        return self._file.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self._starts[-1])

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start], read-only."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        found = joined([self._file.tokens(first, last) for first, last in self._pieces(start, stop)], self.dtype)
        found.flags.writeable = False
        return found

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is None:
            out = np.empty((len(starts), length), self.dtype)
        elif out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        for row, start in zip(out, starts.tolist(), strict=True):
            row[:] = self.tokens(start, start + length)
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """File range of tokens `[start, stop)`, as far as they lie together."""
        pieces = self._pieces(start, max(stop, min(start + 1, self.num_tokens)))
        first, last = next(pieces, (0, 0))
        return self._file.extent(first, min(last, first + stop - start))

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        """File ranges of tokens."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        return tuple(extent for first, last in self._pieces(start, stop) for extent in self._file.extents(first, last))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Token ranges in the file."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        for number in range(first, last):
            begin, end = self._starts[number : number + 2].tolist()
            place = int(self._places[number]) - begin
            if begin < end:
                yield place + max(begin, start), place + min(end, stop)


def joined(pieces: list[TokenArray], dtype: np.dtype[Any]) -> TokenArray:
    """uint[n]: pieces one after another; a single one as it is."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)

"""Tokens of a `.bin` as unsigned ids, whatever dtype they are stored in, in the order of the file or of the index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Store
from penstock.errors import Corrupt
from penstock.formats._tokens import TokenFile, checked_starts
from penstock.formats.megatron.layout import Kind, bin_path
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


class FileIds:
    """All tokens of a `.bin`.

    Unsigned ids are the file's own bytes. So are those of int8, int16 and int32, whose bits are those of the unsigned
    dtype, once no id is negative. int64 and floats are converted to uint32, where they are exact.

    Args:
        store: where the file is.
        prefix: of the dataset.
        kind: how ids are stored.
        num_tokens: tokens to read; the file is known to hold them.
        read: as for `TokenFile`.
        trusted: ids are known to be good, so they need no look.
    """

    __slots__ = ("_file", "_kind", "_path", "_trusted")

    def __init__(
        self, store: Store, prefix: str, kind: Kind, num_tokens: int, read: ReadMode, *, trusted: bool = False
    ) -> None:
        stored = kind.ids.newbyteorder("<") if kind.itemsize <= 4 and kind.stored.kind in "iu" else kind.stored
        self._path = bin_path(prefix)
        self._file = TokenFile(store, self._path, 0, num_tokens, stored, read)
        self._kind = kind
        self._trusted = trusted or kind.stored.kind == "u"

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32."""
        return self._kind.ids

    @property
    def num_tokens(self) -> int:
        """Tokens in the file."""
        return self._file.num_tokens

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start], read-only: a view of the file where its bytes are the ids; raises `Corrupt`."""
        found = self._as_ids(self._file.tokens(start, stop))
        found.flags.writeable = False
        return found

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row; raises `Corrupt`."""
        if self._file.dtype == self._kind.ids:
            return self._as_ids(self._file.gather(starts, length, out))
        ids = self._as_ids(self._file.gather(starts, length))
        if out is None:
            return ids
        out[:] = ids
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """File range of tokens `[start, stop)`."""
        return self._file.extent(start, stop)

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        """The same."""
        return (self._file.extent(start, stop),)

    def _as_ids(self, values: NDArray[Any]) -> TokenArray:
        if values.dtype == self._kind.ids:
            if not self._trusted and values.size and int(values.max()) >= self._kind.id_limit:
                raise self._no_id(values.astype(np.int64) - 2 * self._kind.id_limit * (values >= self._kind.id_limit))
            return values
        ids = _to_uint32(values, self._kind.id_limit)
        if ids is None:
            raise self._no_id(values)
        return ids

    def _no_id(self, values: NDArray[Any]) -> Corrupt:
        """The error for values of which one is no id; the first of them is named."""
        good = (values >= 0) & (values < self._kind.id_limit)
        if values.dtype.kind == "f":
            good &= values == np.floor(values)
        return Corrupt(
            "a token is no id",
            path=self._path,
            found=str(values.flat[int(np.argmin(good))]),
            expected=f"a whole number from 0 to {self._kind.id_limit - 1}",
            hint=f"The tokens are stored as {self._kind.name}; is the dtype code at byte 17 of the index right?",
        )


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


def _to_uint32(values: NDArray[Any], id_limit: int) -> NDArray[np.uint32] | None:
    """The same numbers as uint32; None where one of them is none, or is too large to be exact."""
    if not values.size:
        return values.astype(np.uint32)
    # As Python's own numbers, which do not wrap, and in a form that NaN fails too.
    if not (values.min().item() >= 0 and values.max().item() < id_limit):
        return None
    ids = values.astype(np.uint32)
    return ids if values.dtype.kind == "i" or bool((ids == values).all()) else None

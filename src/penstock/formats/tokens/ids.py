"""Numbers of any dtype in a file, read as unsigned token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._tokens import checked_starts
from penstock.errors import Corrupt
from penstock.formats.tokens.common import TokenFile
from penstock.node.tokens import JoinedIds
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile
from penstock.types import Extent, IntArray, ReadMode, TokenArray

_EXACT_BITS = {2: 11, 4: 24, 8: 53}
"""Width of a float → bits of the whole numbers that it holds without gaps."""


def ids_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that numbers of this dtype are read as: uint8, uint16 or uint32."""
    return np.dtype(f"uint{8 * (4 if stored.kind == 'f' else min(stored.itemsize, 4))}")


def id_limit(stored: np.dtype[Any]) -> int:
    """Return the first id that this dtype can't store, or that isn't a uint32."""
    bits = 8 * stored.itemsize - (stored.kind == "i") if stored.kind in "iu" else _EXACT_BITS[stored.itemsize]
    return 1 << min(bits, 32)


class FileIds:
    """Run of numbers in one file, as ids.

    Unsigned numbers of up to 4 bytes are the file's own bytes. So are int8, int16 and int32 without negative values.
    8-byte integers and floats are converted to uint32 if that is exact.

    Args:
        store: store of the file.
        path: path of the file.
        start_bytes: position of the first number.
        num_tokens: number of numbers to read; the file is known to contain them.
        stored: integer or float dtype in the file.
        read: as for `TokenFile`.
        trusted: all are known to be ids and aren't checked.
        opened: as for `TokenFile`.
    """

    __slots__ = ("_file", "_path", "_stored", "_trusted")

    def __init__(
        self,
        store: Store,
        path: str,
        start_bytes: int,
        num_tokens: int,
        stored: np.dtype[Any],
        read: ReadMode = "auto",
        *,
        trusted: bool = False,
        opened: OpenedFile | None = None,
    ) -> None:
        in_place = stored.kind in "iu" and stored.itemsize <= 4
        self._path = path
        self._stored = stored
        viewed = ids_dtype(stored).newbyteorder(stored.byteorder) if in_place else stored
        self._file = TokenFile(store, path, start_bytes, num_tokens, viewed, read, opened)
        self._trusted = trusted or stored.kind == "u"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the ids: uint8, uint16 or uint32."""
        return ids_dtype(self._stored)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the run."""
        return self._file.num_tokens

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the ids `[start, stop)`, uint[stop - start], read-only; a view of the file if its bytes are the ids.

        Raises:
            Corrupt: a value isn't an id.
        """
        found = self._as_ids(self._file.tokens(start, stop))
        found.flags.writeable = False
        return found

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length]; raise `Corrupt` if a value isn't an id."""
        if self._file.dtype == self.dtype:
            return self._as_ids(self._file.gather(starts, length, out))
        ids = self._as_ids(self._file.gather(starts, length))
        if out is None:
            return ids
        if out.shape != ids.shape:
            raise ValueError(f"out has shape {out.shape}, expected {ids.shape}")
        out[:] = ids
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """Return the file range of the tokens `[start, stop)`."""
        return self._file.extent(start, stop)

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        return (self._file.extent(start, stop),)

    def _as_ids(self, values: NDArray[Any]) -> TokenArray:
        limit = id_limit(self._stored)
        if values.dtype == self.dtype:
            if not self._trusted and values.size and int(values.max()) >= limit:
                raise self._no_id(values.astype(np.int64) - 2 * limit * (values >= limit))
            return values
        ids = _to_uint32(values, limit)
        if ids is None:
            raise self._no_id(values)
        return ids

    def _no_id(self, values: NDArray[Any]) -> Corrupt:
        """Return the error for values of which one isn't an id; it names the first of them."""
        limit = id_limit(self._stored)
        good = (values >= 0) & (values < limit)
        if values.dtype.kind == "f":
            good &= values == np.floor(values)
        return Corrupt(
            "a token is not a valid id",
            path=self._path,
            found=str(values.flat[int(np.argmin(good))]),
            expected=f"an integer from 0 to {limit - 1}",
            hint=f"The tokens are read as {self._stored.name}; check that this is right",
        )


def _to_uint32(values: NDArray[Any], limit: int) -> NDArray[np.uint32] | None:
    """Convert numbers to uint32; return None if one isn't an id, or is too large to be exact."""
    if not values.size:
        return values.astype(np.uint32)
    # As Python numbers, which don't wrap, with comparisons that also fail for NaN.
    if not (values.min().item() >= 0 and values.max().item() < limit):
        return None
    ids = values.astype(np.uint32)
    return ids if values.dtype.kind in "iu" or bool((ids == values).all()) else None


class PickedIds(JoinedIds):
    """Runs of other ids, in any order.

    Each run is read by itself, so windows that span runs cost several times as much.

    Args:
        ids: the other ids.
        begins: first token of each run here, and the number of tokens: int64[n + 1].
        places: start of each run in `ids`: int64[n].
    """

    def __init__(self, ids: Any, begins: IntArray, places: IntArray) -> None:
        super().__init__(begins)
        self._ids = ids
        self._places = places

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._ids.dtype

    def piece(self, number: int) -> tuple[Any, int]:
        return self._ids, int(self._places[number])

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        # Most windows span several runs: reading each window by its runs is faster than all pieces of all windows.
        starts = checked_starts(starts, length, self.num_tokens)
        if out is None:
            out = np.empty((len(starts), length), self.dtype)
        elif out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        for row, start in zip(out, starts.tolist(), strict=True):
            row[:] = self.tokens(start, start + length)
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """Return the file range of tokens `[start, stop)`, up to the end of the first run."""
        runs = self.runs(start, max(stop, min(start + 1, self.num_tokens)))
        _, first, last = next(runs, (None, 0, 0))
        return self._ids.extent(first, min(last, first + stop - start))

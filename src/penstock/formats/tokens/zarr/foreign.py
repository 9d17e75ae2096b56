"""Arrays with unusual codecs or chunk grids, read by zarr-python if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock._regular import require_regular_tree
from penstock.errors import Corrupt, PenstockError, Truncated, Unsupported
from penstock.formats._findings import Problem
from penstock.formats.tokens.zarr.meta import AGAIN, ArrayMeta, fault
from penstock.store._links import walk_files
from penstock.store.base import Store
from penstock.types import Extent, IntArray

_SCAN_ITEMS = 1 << 20


class ForeignArray:
    """`ChunkArray` by zarr-python, with its speed and memory: a few chunks at a time. Local files only."""

    __slots__ = ("_args", "_array", "_folder", "_store", "meta")

    def __init__(self, store: Store, folder: str, meta: ArrayMeta) -> None:
        self._args = (store, folder, meta)
        self._store = store
        self._folder = folder
        self._array: Any = None
        self.meta = meta

    def __reduce__(self) -> tuple[object, ...]:
        return (ForeignArray, self._args)

    def read(self, start: int, stop: int, shift: int = 0) -> NDArray[Any]:
        """Return items `[start, stop)`, shifted right by `shift` bits.

        Raises:
            Unsupported: zarr-python can't open it.
            MissingExtra: zarr-python is not installed.
            Truncated: chunks are missing.
            Corrupt: zarr-python fails on its chunks.
        """
        if self._array is None:
            self._array = self._require_whole(self._open())
        try:
            found = np.asarray(self._array[start:stop]).astype(self.meta.dtype, copy=False)
        except Exception as error:  # whatever a codec raises is a fault of the data
            raise Corrupt(f"zarr can't read {self.meta.foreign}", path=self._folder, found=repr(error)) from error
        return found >> self.meta.dtype.type(shift) if shift else found

    def gather(self, starts: IntArray, length: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return windows, [len(starts), length], in the rows of `out` if given."""
        out = np.empty((len(starts), length), self.meta.dtype) if out is None else out
        for row in np.argsort(starts, kind="stable").tolist():
            out[row] = self.read(int(starts[row]), int(starts[row]) + length)
        return out

    def scan(self, number: int) -> Iterator[NDArray[Any] | Problem]:
        """Yield all items of chunk `number`, in pieces, or its problem."""
        begin = number * self.meta.chunk_items
        stop = min(self.meta.num_items, begin + self.meta.chunk_items)
        try:
            for start in range(begin, stop, _SCAN_ITEMS):
                yield self.read(start, min(stop, start + _SCAN_ITEMS))
        except PenstockError as error:
            yield fault("chunk.decode", Corrupt, self._folder, error.what, AGAIN, None, str(error.found))

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield no ranges: zarr-python doesn't report them."""
        yield from ()

    def problem(self) -> Problem | None:
        """Return why the array can't be read; None if zarr-python can read it."""
        try:
            self._open()
        except PenstockError as error:
            fix = error.hint or "Write the array with codecs that zarr-python supports"
            return fault("metadata.codec", type(error), self._folder, error.what, fix, 0, self.meta.foreign)
        return None

    def _require_whole(self, array: Any) -> Any:
        """Raise `Truncated` if a chunk is missing, which zarr-python reads as its fill value."""
        missing = array.nchunks - array.nchunks_initialized
        if missing > 0:
            found, expected = f"{array.nchunks_initialized} chunks", f"{array.nchunks}"
            raise Truncated("chunk files are missing", path=self._folder, found=found, expected=expected, hint=AGAIN)
        return array

    def _open(self) -> Any:
        if not self._store.is_local:
            raise Unsupported(f"only local files of {self.meta.foreign} can be read", path=self._folder)
        zarr = require("zarr", extra="zarr")
        if self._store.guard is not None:
            for _ in walk_files(self._folder, self._store.guard):  # zarr-python opens them by name
                pass
        require_regular_tree(self._folder)
        try:
            return zarr.open_array(self._folder, mode="r")
        except Exception as error:  # whatever it raises, it does not open it
            raise Unsupported(
                "neither Penstock nor zarr can read this array",
                path=self._folder,
                found=f"{self.meta.foreign}: {error}",
                hint="Install the package of the codec, or write the array with another codec",
            ) from error

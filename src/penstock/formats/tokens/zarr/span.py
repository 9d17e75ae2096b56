"""Pieces of chunks in memory: a cache of decoded ones, and many mapped files as one array.

A batch of windows is one copy from this array. Mappings can be anywhere in memory. One view, from the lowest to the
highest mapping, includes them all, and the memory between them. Only windows inside one mapping may be taken from it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from penstock.types import IntArray

_MOST_BYTES = 1 << 62
_ROWS = 256


class MappedSpan:
    """Windows over mapped arrays of one dtype and one length; thread-safe, as arrays are only ever added.

    Args:
        dtype: dtype of all arrays.
        items: length of each array.

    Attributes:
        places: number of an array → its start, in items from address 0.
    """

    __slots__ = ("_arrays", "_dtype", "_items", "_view", "places")

    def __init__(self, dtype: np.dtype[Any], items: int) -> None:
        self._dtype = dtype
        self._items = items
        self._arrays: dict[int, NDArray[Any]] = {}
        self._view: tuple[int, int, int, NDArray[Any]] | None = None
        self.places: dict[int, int] = {}

    def add(self, number: int, array: NDArray[Any]) -> None:
        """Add an array, which begins at a multiple of its item size and is kept from then on."""
        place = array.ctypes.data // self._dtype.itemsize
        self._arrays[place] = array
        self.places[number] = place

    def gather(self, places: IntArray, length: int, out: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return the window at each place, [len(places), length]; None if one copy isn't possible.

        Args:
            places: place of each window's first item; each window is inside one added array.
            length: at least 1.
            out: array to fill; a new one by default.
        """
        count = len(self._arrays)
        view = self._view
        if view is None or view[:2] != (count, length):
            self._view = view = self._windows(count, length)
        index = places - view[2]
        if not len(view[3]):
            return None
        if out is None:
            return view[3][index]
        # In slices, so that intermediate data stays in the processor's cache.
        for first in range(0, len(index), _ROWS):
            out[first : first + _ROWS] = view[3][index[first : first + _ROWS]]
        return out

    def _windows(self, count: int, length: int) -> tuple[int, int, int, NDArray[Any]]:
        """Return number of arrays, length, lowest place, and a window for each item from there on."""
        arrays = dict(self._arrays)
        low, high = min(arrays), max(arrays) + self._items
        width = self._dtype.itemsize
        shape = (high - low - length + 1, length)
        if shape[0] * length * width >= _MOST_BYTES:
            return count, length, low, np.empty((0, length), self._dtype)
        return count, length, low, as_strided(arrays[low], shape, (width, width), writeable=False)


class PieceCache:
    """Cache of the pieces used last, up to `budget_bytes` in all, or one piece if that is larger.

    Thread-safe. A pickled copy starts empty; a forked child starts with the pieces of its parent.
    """

    __slots__ = ("_bytes", "_lock", "_pid", "_pieces", "budget_bytes")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._pieces: OrderedDict[tuple[int, int], NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        return (PieceCache, (self.budget_bytes,))

    def __len__(self) -> int:
        return len(self._pieces)

    def get(self, key: tuple[int, int]) -> NDArray[Any] | None:
        """Return the piece under `key`, and mark it as the one used last."""
        with self._held():
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
            return piece

    def put(self, key: tuple[int, int], piece: NDArray[Any]) -> None:
        """Keep a piece, and drop those used longest ago until all fit."""
        with self._held():
            if key not in self._pieces:
                self._pieces[key] = piece
                self._bytes += piece.nbytes
            while self._bytes > self.budget_bytes and len(self._pieces) > 1:
                self._bytes -= self._pieces.popitem(last=False)[1].nbytes

    def _held(self) -> threading.Lock:
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock during the fork; it doesn't exist here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

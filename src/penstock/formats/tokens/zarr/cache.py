"""A cache of decoded pieces of chunks, up to a number of bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from numpy.typing import NDArray


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

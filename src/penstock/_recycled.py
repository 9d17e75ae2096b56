"""Memory of arrays that nobody holds any more, given out again.

New memory costs a page fault for every 4 KiB that is written, which can be more than the writing itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_LEAST_BYTES = 1 << 16  # below, the allocator does it as well
_MOST_KEPT = 16


class New(Protocol):
    """Makes an array whose content is not set, as `numpy.empty` does."""

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]: ...


class Recycled:
    """Gives arrays whose content is not set, in memory of earlier ones where it can; a `New`.

    An array's memory comes back when the last array or tensor over it is gone: what a caller holds is never written to.
    Thread-safe. A copy in another process begins with none.

    Memory: what is in use, and the last 16 blocks that came back.

    Args:
        block: makes uint8[n] of new memory; by default on the heap.
    """

    def __init__(self, block: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self._block = block
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_KEPT)

    def __reduce__(self) -> tuple[object, ...]:
        return (Recycled, (self._block,))

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]:
        """An array of this shape and type, in C order."""
        kind = np.dtype(dtype)
        size_bytes = math.prod(shape) * kind.itemsize
        if size_bytes < _LEAST_BYTES and self._block is None:
            return np.empty(shape, kind)
        lease = _Lease(self._taken(size_bytes), self._free)
        return np.asarray(lease)[:size_bytes].view(kind).reshape(shape)

    def _taken(self, size_bytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took it
                break
            if block.nbytes == size_bytes:
                return block
            self._free.append(block)
        return np.empty(size_bytes, np.uint8) if self._block is None else self._block(size_bytes)


class _Lease:
    """Holds a block while an array over it is alive: numpy keeps it as their base."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)

"""Views of objects that contain bytes, and memory of unused arrays that is used again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.types import Buffer


def byte_view(data: Buffer) -> memoryview:
    """Return the bytes of a buffer or an array, without a copy if it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


_LEAST_BYTES = 1 << 16  # below, the allocator does it as well
_MOST_KEPT = 16


class New(Protocol):
    """Allocator of arrays with undefined content, like `numpy.empty`."""

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]: ...


class Recycled:
    """Allocator of arrays with undefined content, in memory of earlier ones if possible; a `New`.

    An array's memory is reused when the last array or tensor over it is gone, so referenced arrays are never
    overwritten.
    Thread-safe. A copy in another process starts empty.

    Memory: memory in use, and the last 16 free blocks.

    Args:
        block: allocates uint8[n]; by default on the heap.
    """

    def __init__(self, block: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self._block = block
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_KEPT)

    def __reduce__(self) -> tuple[object, ...]:
        return (Recycled, (self._block,))

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]:
        """Return an array of this shape and type, in C order."""
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
    """Lease of a block while an array over it is alive: numpy keeps it as their base."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)

"""A mapped local file whose pages can be released, so that reading all of it does not count as memory."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from penstock._regular import open_regular
from penstock.errors import NotFound


class MappedFile:
    """uint8[size_bytes] of a local file, read-only.

    Args:
        path: the file; it must not become shorter while it is mapped.

    Raises:
        NotFound: no such file.
        UnsafeData: a pipe or a device.
    """

    __slots__ = ("_map", "data")

    def __init__(self, path: str) -> None:
        try:
            with open_regular(path) as file:
                empty = not file.read(1)
                self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise NotFound("no such file or folder", path=path, hint="Check the path") from None
        self.data: NDArray[np.uint8] = np.frombuffer(self._map or b"", np.uint8)

    def release(self) -> None:
        """Release the pages read so far; they are read from the file again when they are needed again."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

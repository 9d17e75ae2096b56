"""Files mapped into memory, without a descriptor each.

Python's own mapping keeps a descriptor as long as it lives, and of these a process has often no more than 1,024. Of
mappings Linux allows it 65,530: see `penstock.store.held`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._regular import open_regular
from penstock.errors import NotFound


class Mapping:
    """Bytes `[0, size_bytes)` of an open file, mapped as long as an array over it, `np.asarray(mapping)`, lives.

    Safe after fork; the file must not become shorter while it is mapped.

    Args:
        descriptor: of the file; it may be closed afterwards.
        size_bytes: 1 or more, and no more than the file has.
        private: writable, and what is written is this process's own; else read-only, and shared.
        unmapped: called when the bytes are mapped no more, from whatever thread dropped the last array over them.

    Raises:
        OSError: the system refuses.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_place", "_unmap", "_unmapped")

    def __init__(
        self, descriptor: int, size_bytes: int, *, private: bool = False, unmapped: Callable[[], None] | None = None
    ) -> None:
        libc = _libc()
        how = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE) if private else (mmap.PROT_READ, mmap.MAP_SHARED)
        address = libc.mmap(None, size_bytes, *how, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(
                number, f"{size_bytes:,} bytes of a file can't be memory-mapped: {os.strerror(number)}{_limit(number)}"
            )
        self._unmap, self._place, self._unmapped = libc.munmap, (address, size_bytes), unmapped
        self.__array_interface__ = {
            "data": (address, not private), "shape": (size_bytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if hasattr(self, "_place"):
            self._unmap(*self._place)
            if self._unmapped is not None:
                self._unmapped()

    def madvise(self, option: int, start_bytes: int = 0, length_bytes: int | None = None) -> None:
        """What the system is to do with a range that begins at a page's border, such as `mmap.MADV_WILLNEED`."""
        address, size_bytes = self._place
        length_bytes = size_bytes - start_bytes if length_bytes is None else length_bytes
        _libc().madvise(address + start_bytes, length_bytes, option)


class MappedFile:
    """uint8[size_bytes] of a local file, read-only, whose pages can be released.

    Reading all of it then does not count as memory.

    Args:
        path: the file; it must not become shorter while it is mapped.

    Raises:
        NotFound: no such file.
        UnsafeData: a pipe or a device.
    """

    __slots__ = ("_mapping", "data")

    def __init__(self, path: str) -> None:
        try:
            with open_regular(path) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                self._mapping = Mapping(file.fileno(), size_bytes) if size_bytes else None
        except FileNotFoundError:
            raise NotFound("no such file or folder", path=path, hint="Check the path") from None
        self.data: NDArray[np.uint8] = np.empty(0, np.uint8) if self._mapping is None else np.asarray(self._mapping)

    def release(self) -> None:
        """Release the pages read so far; they are read from the file again when they are needed again."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)


def map_open(descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
    """uint8[size_bytes], read-only: the first bytes of an open file, which may then be closed; raises `OSError`."""
    return np.asarray(Mapping(descriptor, size_bytes)) if size_bytes else np.empty(0, np.uint8)


def mapping_of(array: NDArray[Any]) -> Mapping | None:
    """What maps an array of all bytes of a file; None where that is no file."""
    return array.base if isinstance(array.base, Mapping) else None


def _limit(number: int) -> str:
    """How many mappings the system allows, where that may be why there is none."""
    with contextlib.suppress(OSError, ValueError):
        if number == errno.ENOMEM:
            with open("/proc/sys/vm/max_map_count", "rb") as file:
                return f" (mappings of a process: at most {int(file.read()):,}, sysctl vm.max_map_count)"
    return ""


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc

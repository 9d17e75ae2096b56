"""Files mapped into memory without keeping a descriptor per file.

Python's own mapping keeps a descriptor open, and a process often may have only 1,024 of them. Linux allows 65,530
mappings.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import resource
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._regular import open_regular
from penstock.errors import NotFound

MOST_HELD = 1 << 14
"""Limit on values held at once in a process: a quarter of the mappings that Linux allows."""

USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers of a process that has reached its limit on files or mappings."""

T = TypeVar("T")
Ring: TypeAlias = "deque[weakref.ref[Held[Any]]]"
"""Held values, in the order in which they are considered for dropping."""


class Held(Generic[T]):
    """A value created at first use, dropped when too many are held, and created again when needed.

    Values that weren't used recently are dropped first. Safe in threads: if two create the value at once, one of the
    values stays. Safe after fork; not picklable. `get` costs a call and two attributes while the value is held.

    Args:
        make: returns the value, never None, the same each time. A method is referenced weakly, so that its object may
            own this one: the value is dropped with the object.
        ring: values that share the limit; by default all of the process.
        most: the limit.
    """

    __slots__ = ("__weakref__", "_make", "_most", "_ring", "_used", "_value")

    def __init__(self, make: Callable[[], T], *, ring: Ring | None = None, most: int | None = None) -> None:
        self._make = weakref.WeakMethod(make) if isinstance(make, MethodType) else partial(_same, make)
        self._ring = _of_process if ring is None else ring
        self._most = most
        self._value: T | None = None
        self._used = False

    def get(self) -> T:
        value = self._value
        if value is not None:
            self._used = True
            return value
        make_room(self._ring, MOST_HELD if self._most is None else self._most)
        make = self._make()
        if make is None:
            raise ReferenceError("the object that owns this value was deleted")
        value = making_room(make, self._ring)
        self._value, self._used = value, True
        self._ring.append(weakref.ref(self))
        return value

    def held(self) -> T | None:
        return self._value

    def stays(self) -> bool:
        """Return whether the value was used since the last call; otherwise drop it."""
        used, self._used = self._used, False
        if not used:
            self._value = None
        return used and self._value is not None


def _same(make: T) -> T:
    return make


def make_room(ring: Ring, most: int) -> None:
    """Drop values that weren't used since the last check, until fewer than `most` are held. O(1) per access."""
    # Each step is one atomic call of the deque, so there is no lock that a fork could leave locked.
    while len(ring) >= most:
        try:
            one = ring.popleft()()
        except IndexError:  # another thread emptied the ring
            return
        if one is not None and one.stays():
            ring.append(weakref.ref(one))


def making_room(make: Callable[[], T], ring: Ring | None = None) -> T:
    """Call `make`; if the process has no file or mapping left, drop all values and call it again."""
    try:
        return make()
    except OSError as error:
        if error.errno not in USED_UP:
            raise
    make_room(_of_process if ring is None else ring, 1)
    return make()


_of_process: Ring = deque()  # the limit applies to the process, so all sources share this ring


class Mapping:
    """Bytes `[0, size_bytes)` of an open file, mapped while an array over it, `np.asarray(mapping)`, exists.

    Safe after fork; the file must not become shorter while it is mapped. Raises `OSError`.

    Args:
        descriptor: descriptor of the file; it may be closed afterwards.
        size_bytes: number of bytes to map, from 1 to the file's size.
        private: writable copy-on-write mapping; otherwise read-only and shared.
        unmapped: called after unmapping, by the thread that dropped the last array.
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
        """Advise the system, for example with `mmap.MADV_WILLNEED`, about a range that begins at a page border."""
        address, size_bytes = self._place
        length_bytes = size_bytes - start_bytes if length_bytes is None else length_bytes
        _libc().madvise(address + start_bytes, length_bytes, option)


class MappedFile:
    """Read-only uint8[size_bytes] of a local file, whose pages can be released.

    So reading all of it doesn't increase the memory use of the process.

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
        """Release the pages read so far; they are read from the file again if needed."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)


def map_open(descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
    """Map an open file, which may then be closed, as uint8[size_bytes], read-only; raise `OSError`."""
    return np.asarray(Mapping(descriptor, size_bytes)) if size_bytes else np.empty(0, np.uint8)


def mapping_of(array: NDArray[Any]) -> Mapping | None:
    return array.base if isinstance(array.base, Mapping) else None


def _limit(number: int) -> str:
    """Return the system's limit on mappings if it may be the cause of an error."""
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


Advice: TypeAlias = Callable[[int, int], None]
"""Function that prefetches bytes `[start, stop)` of a mapped file in the background; the range must not be empty."""

_BATCHES = 256
_STEP_BYTES = 1 << 17  # Linux limits one call to its readahead size, usually 128 KiB
_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Readahead:
    """Decides if batches over one dataset first advise the system of their ranges.

    After a batch that waited for the disk, some batches advise. Then one batch is a probe, which measures its first
    ranges. As long as probes don't wait, batches don't advise. Safe in threads: at worst, one batch more or less
    advises.
    """

    __slots__ = ("_left", "probing")

    def __init__(self) -> None:
        self._left = 0
        self.probing = True

    def wanted(self) -> bool:
        if self._left > 0:
            self._left -= 1
            self.probing = True
            return True
        return False

    def watch(self, faults_before: int) -> bool:
        """Return whether a batch without advice, or the first ranges of a probe, waited for the disk."""
        self.probing = False
        waited = disk_faults() > faults_before
        if waited:
            self._left = _BATCHES
        return waited


def disk_faults() -> int:
    """Return the number of page faults of this thread that waited for the disk; 0 if unknown."""
    return 0 if _THIS_THREAD is None else resource.getrusage(_THIS_THREAD).ru_majflt


def random_access(mapped: NDArray[np.uint8]) -> Advice | None:
    """Let the system read only the touched pages of a mapped file; returns a function that prefetches ranges, in bytes.

    Returns None if the array isn't a mapping of a whole file.
    """
    mapping = mapping_of(mapped)
    if mapping is None:
        return None
    advise, will_need, page_bytes = mapping.madvise, mmap.MADV_WILLNEED, mmap.PAGESIZE
    advise(mmap.MADV_RANDOM)

    def advise_range(start_bytes: int, stop_bytes: int) -> None:
        start_bytes -= start_bytes % page_bytes
        for begin in range(start_bytes, stop_bytes, _STEP_BYTES):
            advise(will_need, begin, min(_STEP_BYTES, stop_bytes - begin))

    return advise_range

"""Reading mapped files ahead: only while reads go to the disk, and only what is asked for.

A plain mapping reads around each page that is missing, up to megabytes: for random windows that is most of the file.
Without that, and asked for the windows of a batch beforehand, the system reads these alone, all at once. Asking costs
a system call a window, which data in memory do not need. So a batch that meets the disk turns it on, for its rest and
for the next ones.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Advice: TypeAlias = Callable[[int, int], None]
"""Has bytes `[start, stop)` of one mapped file read while the caller goes on; not for an empty range."""

_BATCHES = 256
_STEP_BYTES = 1 << 17  # Linux reads no more for one call than it would read ahead, usually 128 KiB
_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Readahead:
    """Whether batches over one dataset ask for their ranges first.

    Some batches ask, after one that waited for the disk; then one is a probe, which looks at its first ranges; as long
    as that did not wait, batches do not ask. Safe in threads: at worst a batch more or less asks.
    """

    __slots__ = ("_left", "probing")

    def __init__(self) -> None:
        self._left = 0
        self.probing = True

    def wanted(self) -> bool:
        """Whether this batch should ask."""
        if self._left > 0:
            self._left -= 1
            self.probing = True
            return True
        return False

    def watch(self, faults_before: int) -> bool:
        """After a batch that did not ask, or the first ranges of a probe: whether it had to wait for the disk."""
        self.probing = False
        waited = disk_faults() > faults_before
        if waited:
            self._left = _BATCHES
        return waited


def disk_faults() -> int:
    """Pages that this thread has waited for so far; 0 where the system does not tell."""
    return 0 if _THIS_THREAD is None else resource.getrusage(_THIS_THREAD).ru_majflt


def random_access(mapped: NDArray[np.uint8]) -> Advice | None:
    """Have the system read only what is touched of a mapped file; gives the way to ask for more, in bytes of it.

    None for an array that is no mapping of a whole file.
    """
    file = getattr(mapped.base, "obj", None)
    if not isinstance(file, mmap.mmap) or not hasattr(file, "madvise"):
        return None
    advise, will_need, page_bytes = file.madvise, mmap.MADV_WILLNEED, mmap.PAGESIZE
    advise(mmap.MADV_RANDOM)

    def ask(start_bytes: int, stop_bytes: int) -> None:
        start_bytes -= start_bytes % page_bytes
        for begin in range(start_bytes, stop_bytes, _STEP_BYTES):
            advise(will_need, begin, min(_STEP_BYTES, stop_bytes - begin))

    return ask

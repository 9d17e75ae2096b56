"""Reads mapped files ahead: only while reads go to the disk, and only the ranges that are needed.

A plain mapping reads around each page that is missing, up to megabytes: for random windows that is most of the file.
With that turned off, and `madvise` called for the windows of a batch beforehand, the system reads these alone, all at
once. Each advice costs a system call a window, which data in memory do not need. So a batch that waits for the disk
turns it on, for its rest and for the next ones.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.store.mapped import mapping_of

Advice: TypeAlias = Callable[[int, int], None]
"""Has bytes `[start, stop)` of one mapped file read while the caller goes on; not for an empty range."""

_BATCHES = 256
_STEP_BYTES = 1 << 17  # Linux reads no more for one call than it would read ahead, usually 128 KiB
_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Readahead:
    """Whether batches over one dataset advise the system of their ranges first.

    After a batch that waited for the disk, some batches advise; then one is a probe, which looks at its first ranges;
    as long as probes did not wait, batches don't advise. Safe in threads: at worst a batch more or less advises.
    """

    __slots__ = ("_left", "probing")

    def __init__(self) -> None:
        self._left = 0
        self.probing = True

    def wanted(self) -> bool:
        """Whether this batch should advise."""
        if self._left > 0:
            self._left -= 1
            self.probing = True
            return True
        return False

    def watch(self, faults_before: int) -> bool:
        """After a batch that did not advise, or the first ranges of a probe: whether it had to wait for the disk."""
        self.probing = False
        waited = disk_faults() > faults_before
        if waited:
            self._left = _BATCHES
        return waited


def disk_faults() -> int:
    """Pages that this thread has waited for so far; 0 where the system does not count them."""
    return 0 if _THIS_THREAD is None else resource.getrusage(_THIS_THREAD).ru_majflt


def random_access(mapped: NDArray[np.uint8]) -> Advice | None:
    """Let the system read only the touched pages of a mapped file; returns a function that prefetches ranges, in bytes.

    None for an array that is no mapping of a whole file.
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

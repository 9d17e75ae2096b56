"""Reading mapped files ahead: only while reads go to the disk, and only what is asked for.

A plain mapping reads around each page that is missing, which for random windows is most of the file. Asking for the
windows of a batch beforehand reads these alone, all at once; but it costs a system call a window, which data in
memory do not need. So a batch that met the disk turns it on for the next ones.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Advice: TypeAlias = Callable[[int, int], None]
"""Has items `[start, stop)` of one mapped array read while the caller goes on."""

_BATCHES = 256
_FEW_FAULTS = 4
_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Readahead:
    """Whether batches over one dataset ask for their ranges first.

    Safe in threads: at worst a batch more or less asks.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def wanted(self) -> bool:
        """Whether this batch should ask."""
        self._left = max(0, self._left - 1)
        return self._left > 0

    def watch(self, faults_before: int) -> None:
        """After a batch that did not ask: ask from now on, if it had to wait for the disk."""
        if disk_faults() - faults_before > _FEW_FAULTS:
            self._left = _BATCHES


def disk_faults() -> int:
    """Pages that this thread has waited for so far; 0 where the system does not tell."""
    return 0 if _THIS_THREAD is None else resource.getrusage(_THIS_THREAD).ru_majflt


def advice_for(mapped: NDArray[Any]) -> Advice | None:
    """How to ask for ranges of an array over a mapped file; None for any other array."""
    base: Any = mapped
    whole = mapped
    while isinstance(base, np.ndarray):
        whole, base = base, base.base
    file = getattr(base, "obj", None)
    if not isinstance(file, mmap.mmap) or not hasattr(file, "madvise"):
        return None
    offset_bytes, width, page_bytes = mapped.ctypes.data - whole.ctypes.data, mapped.itemsize, mmap.PAGESIZE
    advise, will_need = file.madvise, mmap.MADV_WILLNEED

    def ask(start: int, stop: int) -> None:
        start_bytes, stop_bytes = offset_bytes + start * width, offset_bytes + stop * width
        start_bytes -= start_bytes % page_bytes
        advise(will_need, start_bytes, stop_bytes - start_bytes)

    return ask

"""Hidden files that dead processes left: in a folder of the cache, and beside or in an output that is complete."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from typing import Protocol, runtime_checkable

from penstock.store._replaced import is_staged_name

_YOUNG_S = 60.0  # a file is made first and locked then


@runtime_checkable
class _Sweeps(Protocol):
    """A store whose killed writers leave hidden files."""

    def sweep(self, path: str, /) -> None: ...


@runtime_checkable
class _SweepsFolders(Protocol):
    """A store whose killed writers leave hidden files in folders that are not made visible at once."""

    def sweep_folder(self, path: str, /) -> None: ...


def sweep_output(store: object, path: str) -> None:
    """Remove what a writer of the file `path` left that was killed when it was visible already."""
    if isinstance(store, _Sweeps):
        store.sweep(path)


def sweep_folder(store: object, path: str) -> None:
    """Remove what writers of the folder `path` left, where its dataset is complete."""
    if isinstance(store, _SweepsFolders):
        store.sweep_folder(path)


def sweep(folder: str) -> None:
    """Remove staged files whose writers are gone; once a process and folder."""
    _sweep(folder, os.getpid())


@functools.cache
def _sweep(folder: str, _pid: int) -> None:
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if is_staged_name(entry):
                remove_if_dead(os.path.join(folder, entry))


def remove_if_dead(path: str) -> None:
    """Remove a file that its owner holds under `flock` while it lives, unless it does or the file is a minute young."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One in the future is of a clock that was set back since: its file is not kept until that time comes.
            if abs(time.time() - os.fstat(fd).st_mtime) > _YOUNG_S:
                os.unlink(path)
        finally:
            os.close(fd)

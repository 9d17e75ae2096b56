"""Locks between processes of one host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Generator
from typing import Any

from penstock.store._named import named

_ANOTHER_THING = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}


@contextlib.contextmanager
def hold_lock(path: str, *, wait: bool = True, shared: bool = False) -> Generator[bool]:
    """Hold a lock between processes of this host on the file `path`, which is made where missing.

    It is exclusive, or `shared` with others that hold it so.

    The holder may delete the file: waiting processes then lock a new one.

    Yields:
        Whether the lock was acquired; always true with `wait`.

    Raises:
        FileExistsError: a link, a folder or no regular file stands in its place.
    """
    with locked_file(path, wait=wait, shared=shared) as fd:
        yield fd >= 0


@contextlib.contextmanager
def locked_file(path: str, *, wait: bool = True, shared: bool = False) -> Generator[int]:
    """As `hold_lock`; yields the descriptor of the locked file, which is read-only where it must be, or -1."""
    while True:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            fd = open_lock(path)
        except FileNotFoundError:
            continue  # the holder removed the folder in between
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            had = False
            break
        except BaseException:
            os.close(fd)
            raise
        had = True
        try:
            is_ours = _is_file_of(fd, path)
        except BaseException:
            os.close(fd)
            raise
        if is_ours:
            break
        os.close(fd)
    try:
        yield fd if had else -1
    finally:
        if had:
            # A child forked meanwhile has the descriptor too: closing ours alone would leave the lock with it.
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def open_lock(path: str, os_module: Any = os) -> int:
    """The descriptor of a file to lock, which is made where missing; a link would make, or change, a file elsewhere.

    Raises:
        FileExistsError: a link, a folder or no regular file stands in its place.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            fd = os_module.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except PermissionError as refused:
            try:
                fd = os_module.open(path, os.O_RDONLY | flags)  # another user's: reading it is enough to lock it
            except FileNotFoundError:
                raise refused from None
    except OSError as error:
        if error.errno in _ANOTHER_THING:
            raise _another_thing(path) from None
        raise
    try:
        status = os.fstat(fd)
    except OSError as error:
        os_module.close(fd)
        raise OSError(error.errno, error.strerror, path) from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # what is written is seen elsewhere
        os_module.close(fd)
        raise _another_thing(path)
    return fd


def _another_thing(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "the path of the lock file is taken by something else", path)


def _is_file_of(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise named(error, path) from None

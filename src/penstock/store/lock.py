"""Locks between processes of one host."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator


@contextlib.contextmanager
def hold_lock(path: str, *, wait: bool = True) -> Generator[bool]:
    """Hold an exclusive lock between processes of this host on the file `path`, which is made where missing.

    The holder may delete the file: whoever waited for it then locks a new one.

    Yields:
        Whether the lock was had; always true with `wait`.
    """
    while True:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            fd = _opened(path)
        except FileNotFoundError:
            continue  # the holder removed the folder in between
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            had = False
            break
        except BaseException:
            os.close(fd)
            raise
        had = True
        if _is_file_of(fd, path):
            break
        os.close(fd)
    try:
        yield had
    finally:
        if had:
            # A child forked meanwhile has the descriptor too: closing ours alone would leave the lock with it.
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _opened(path: str) -> int:
    try:
        # A link would make, or later change, a file elsewhere.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except PermissionError as error:
        try:
            return os.open(
                path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            )  # another user's file: reading it is enough to lock it
        except FileNotFoundError:
            raise error from None


def _is_file_of(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False

"""Regular files alone: the one way in which a file is opened by name.

A FIFO would wait for ever, a device has no end, and both may lie in a dataset that a stranger made. They are refused
without waiting. Inputs are read more than once and at any place, which a pipe can't be: so this holds for `/dev/stdin`
and `<(command)` too.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, BinaryIO

from penstock.errors import FormatError, UnsafeData

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_descriptor(path: str | os.PathLike[str], os_module: Any = os) -> int:
    """A file descriptor to read from, opened without waiting for a writer; not looked at yet: see `require_regular`.

    A read of it at an offset fails where it is a pipe.

    Raises:
        UnsafeData: a socket.
        OSError: it can't be opened.
    """
    try:
        return os_module.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # Somebody holds a lease on it, as servers of files do: it is a regular file, and the lease ends soon.
        require_regular(os_module.stat(path), path)
        return os_module.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise not_regular(path, "a socket or device") from None
        raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading; a folder raises `IsADirectoryError`.

    Raises:
        UnsafeData: a pipe, a socket or a device.
        OSError: it can't be opened.
    """
    fd = open_descriptor(path)
    try:
        status = os.fstat(fd)
        require_regular(status, path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse what is neither a regular file nor a folder; raises `UnsafeData`."""
    kind = next((name for is_one, name in _KINDS if is_one(status.st_mode)), None)
    if kind is not None:
        raise not_regular(path, kind)


def require_regular_path(path: str | os.PathLike[str]) -> None:
    """The same by name, for files that a library opens itself; what is not there is left to it. Raises `UnsafeData`."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return
    require_regular(status, path)


def not_regular(path: str | os.PathLike[str], kind: str) -> FormatError | UnsafeData:
    """The error for what is no regular file."""
    return UnsafeData(
        "not a regular file", path=path, found=kind, expected="a file with random access",
        hint="Write its output to a file first",
    )  # fmt: skip


def require_regular_tree(folder: str) -> None:
    """Refuse a folder that holds anything else, at any depth, for a library that opens its files by name.

    No file is looked at but links: the folder's own list says what each is. Raises `UnsafeData`.
    """
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file():
                    require_regular_path(entry.path)

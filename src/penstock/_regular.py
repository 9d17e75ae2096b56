"""Opening of files by name, which must be regular files.

A FIFO would block forever, a device has no end, and both may be in an untrusted dataset. They raise an error without
waiting. Inputs are read more than once and at any offset, which a pipe doesn't support: so this also applies to
`/dev/stdin` and `<(command)`.
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
    """Return a file descriptor for reading, opened without waiting for a writer; see `require_regular`.

    Reading at an offset fails for a pipe.

    Raises:
        UnsafeData: the path is a socket.
        OSError: the file can't be opened.
    """
    try:
        return os_module.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # Another process holds a lease on it, as file servers do: it is a regular file, and the lease ends soon.
        require_regular(os_module.stat(path), path)
        return os_module.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise not_regular(path, "a socket or device") from None
        raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a directory raises `IsADirectoryError`.

    Raises:
        UnsafeData: the path is a pipe, a socket or a device.
        OSError: the file can't be opened.
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
    """Return all bytes of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise `UnsafeData` for anything but a regular file or a directory."""
    kind = next((name for is_one, name in _KINDS if is_one(status.st_mode)), None)
    if kind is not None:
        raise not_regular(path, kind)


def require_regular_path(path: str | os.PathLike[str]) -> None:
    """Check a path that a library opens itself; missing files are ignored. Raise `UnsafeData`."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return
    require_regular(status, path)


def not_regular(path: str | os.PathLike[str], kind: str) -> FormatError | UnsafeData:
    """Return the error for anything but a regular file."""
    return UnsafeData(
        "not a regular file", path=path, found=kind, expected="a file with random access",
        hint="Write its output to a file first",
    )  # fmt: skip


def require_regular_tree(folder: str) -> None:
    """Check that a directory contains only regular files at any depth, for a library that opens them by name.

    Only links are examined: the directory listing has the types of all entries. Raises `UnsafeData`.
    """
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file():
                    require_regular_path(entry.path)

"""Errors of the system that name the file, and say how much there is of what is used up: space, or open files."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import resource
from collections.abc import Generator
from typing import Any

from penstock.errors import PenstockError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIMIT = "files of a process: at most"
_FREE = "bytes free there"
_AMOUNT = {"write": 1, "pwrite": 1, "copy_file_range": 2}  # name → which argument is what is written, or how much
_HIDDEN = re.compile(r"(^|/)\.([^/]+)\.(?:[0-9a-f]{8}|lock)\.staged(?=/|$)")
_STAGING = re.compile(r"(^|/)\.[^/]+\.new/(?=[^/]+$)")


def named(error: OSError, path: str, wanted_bytes: int = 0) -> OSError:
    """`error` itself, once it says where.

    Args:
        error: of the system; what we raise on purpose says where already.
        path: of the file, where the error has none; hidden names are given as they will be.
        wanted_bytes: what was to be written, 0 where that is not known.
    """
    if isinstance(error, PenstockError) or error.errno is None:
        return error
    what = error.strerror or os.strerror(error.errno)
    where = path if error.filename is None or isinstance(error.filename, int) else os.fsdecode(error.filename)
    error.filename = _STAGING.sub(r"\1", _HIDDEN.sub(r"\1\2", where))
    if error.filename2 is not None:  # of a rename: a user knows one name
        del error.filename2
    if error.errno in _FULL and _FREE not in what:
        wanted = f"{wanted_bytes:,} bytes left to write, " if wanted_bytes else ""
        what = f"{what}: {wanted}{_free(path)}"
    if error.errno == errno.EMFILE and _LIMIT not in what:
        what = f"{what} ({_LIMIT} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}, ulimit -n)"
    # Both: a pickled error has its text from the arguments alone.
    error.args, error.strerror = (error.errno, what), what
    return error


@contextlib.contextmanager
def naming(path: str) -> Generator[None]:
    """Have the system's errors of the block say where: at `path`, where they don't."""
    try:
        yield
    except OSError as error:
        raise named(error, path) from None


class NamingOs:
    """The `os` module for the files of one output: its errors are `named`.

    Args:
        os_module: does the work.
        path: the output, as a user knows it.
    """

    __slots__ = ("_os", "_path")

    def __init__(self, os_module: Any, path: str) -> None:
        self._os = os_module.plain if isinstance(os_module, NamingOs) else os_module
        self._path = path

    @property
    def plain(self) -> Any:
        """The module inside."""
        return self._os

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._os, name)
        return functools.partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, call: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except OSError as error:
            amount: Any = args[_AMOUNT[name]] if name in _AMOUNT else 0
            raise named(error, self._path, amount if isinstance(amount, int) else len(amount)) from None


def raised(error: OSError) -> None:
    """Raise the error that `os.walk` reports: a folder that can't be read is not an empty one, but may be gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _free(path: str) -> str:
    """What is free for us in the file system of a path that may not be there yet; 0 bytes where it does not say."""
    folder = os.path.dirname(os.path.abspath(path))
    while True:
        try:
            status = os.statvfs(folder)
        except OSError:
            if folder == os.path.dirname(folder):
                return f"0 {_FREE}"
            folder = os.path.dirname(folder)
        else:
            no_more = ", but no free inodes (df -i)" if status.f_files and not status.f_favail else ""
            return f"{status.f_bavail * status.f_frsize:,} {_FREE}{no_more}"

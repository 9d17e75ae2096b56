"""Databases of sqlite in any store, read only; and what its errors mean, of those that we read and those we make."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Generator
from urllib.parse import quote

from penstock.abc import Store, SupportsCopies
from penstock.store._named import named
from penstock.store.local import LocalStore
from penstock.store.resolve import absolute

_FORMAT_BYTES = slice(18, 20)
_NOT_A_WAL = b"\1\1"
_SYSTEM = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
}


def connect(store: Store, path: str) -> sqlite3.Connection:
    """A read-only connection to a database of any store; a remote one is read whole. Raises `OSError`."""
    if isinstance(store, LocalStore):
        local = path
    elif isinstance(store, SupportsCopies):
        local = store.local_copy(path)
    else:
        data = bytearray(store.get(path))
        # One in memory has no write-ahead log beside it, whatever its header says.
        data[_FORMAT_BYTES] = _NOT_A_WAL
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.deserialize(bytes(data))
        return connection
    uri = f"file:{quote(absolute(local))}?mode=ro&immutable=1"
    with system_errors(local):
        return sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16)


@contextlib.contextmanager
def system_errors(path: str) -> Generator[None]:
    """Errors of sqlite that are the system's, such as a full disk, as `OSError`; others pass.

    Args:
        path: of the database.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise_system_error(error, path)
        raise


def raise_system_error(error: BaseException, path: str) -> None:
    """Raise the `OSError` that an error of sqlite is; does nothing where it is none."""
    number = _SYSTEM.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF)
    if number is None:
        return
    if number == errno.EACCES and os.path.exists(path):
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # says why it can't be opened
    raise named(OSError(number, os.strerror(number)), path) from None

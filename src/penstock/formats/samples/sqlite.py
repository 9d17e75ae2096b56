"""Read-only SQLite databases in any store. Untrusted databases may only have plain tables, and steps are limited.

A view, a trigger, a generated column or a virtual table is a program: a query over one may never end. Pages of a
damaged file may form cycles. So only tables and their indexes are allowed, no value may be longer than
`MOST_SQLITE_VALUE_BYTES`, and a statement is interrupted after `SQLITE_STEPS + SQLITE_STEPS_PER_BYTE × size` steps of
the virtual machine, more than any query over so many rows needs. Errors of the system are an `OSError`, as for any
other file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

from penstock._limits import MOST_SQLITE_VALUE_BYTES, SQLITE_STEPS, SQLITE_STEPS_PER_BYTE
from penstock.store._copies import NoCopy
from penstock.store._files import named
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.place import absolute

_STRIDE = 100_000
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


class _Bounded(sqlite3.Connection):
    """Connection whose statements are interrupted at a limit."""

    left = most = 0

    def bound(self, size_bytes: int) -> None:
        """Set the limits for a database of this size; raise `sqlite3.DatabaseError` if it contains programs."""
        self.most = self.left = -(-(SQLITE_STEPS + SQLITE_STEPS_PER_BYTE * size_bytes) // _STRIDE)
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_SQLITE_VALUE_BYTES)
        self.set_progress_handler(self._step, _STRIDE)
        self.execute("PRAGMA trusted_schema=OFF").fetchall()
        _require_tables(self)

    def execute(self, *given: Any) -> sqlite3.Cursor:
        self.left = self.most
        return super().execute(*given)

    def _step(self) -> bool:
        self.left -= 1
        return self.left < 0


def connect(store: Store, path: str) -> sqlite3.Connection:
    """Return a read-only connection to a database of any store; a remote database is downloaded completely.

    Raises:
        NotFound: the file doesn't exist.
        UnsafeData: the file is a pipe or a device.
        OSError: the system call failed.
        sqlite3.DatabaseError: the file isn't a database, or contains more than tables and their indexes.
    """
    if store.is_local:
        local = store.real_path(path)
    else:
        copy = _copy(store, path)
        if not isinstance(copy, str):
            with system_errors(path):
                return _in_memory(copy)
        local = copy
    LocalStore().size(local)  # rejects pipes and devices, which SQLite doesn't report
    uri = f"file:{quote(absolute(local))}?mode=ro&immutable=1"
    with system_errors(local):
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16, factory=_Bounded)
        return _bounded(connection, os.path.getsize(local))


@contextlib.contextmanager
def system_errors(path: str) -> Generator[None]:
    """Turn errors of SQLite that are the system's, such as a full disk, into `OSError`; others stay `sqlite3.Error`.

    Args:
        path: path of the database.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise_system_error(error, path)
        raise
    except UnicodeDecodeError as error:  # raised by sqlite3 for the names of damaged tables
        raise sqlite3.DatabaseError(f"text that is not UTF-8: {error}") from None


def raise_system_error(error: BaseException, path: str) -> None:
    """Raise the `OSError` that caused an error of SQLite, if any; otherwise return."""
    number = _SYSTEM.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF)
    if number is None:
        return
    if number == errno.EACCES and os.path.exists(path):
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # raises the reason
    raise named(OSError(number, os.strerror(number)), path) from None


def _copy(store: Store, path: str) -> str | bytearray:
    """Return the path of a local copy, or the bytes if the store keeps no copies or has no room for one."""
    if not store.keeps_copies:
        return bytearray(store.get(path))
    try:
        return store.local_copy(path)
    except NoCopy:
        return bytearray(store.mapped_copy(path))


def _in_memory(data: bytearray) -> sqlite3.Connection:
    # A database in memory has no write-ahead log, whatever its header says.
    data[_FORMAT_BYTES] = _NOT_A_WAL
    connection = sqlite3.connect(":memory:", check_same_thread=False, factory=_Bounded)
    connection.deserialize(bytes(data))
    return _bounded(connection, len(data))


def damage(connection: sqlite3.Connection) -> str | None:
    """Return the first problem with a database's pages, rows and indexes, all of which are checked, or None.

    Raises:
        sqlite3.Error: the database is too damaged for a check.
    """
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if found == "ok" else found[:200]


def connect_to_write(path: str) -> sqlite3.Connection:
    """Return a connection to a copy of a database; transactions begin and end explicitly.

    Raises:
        sqlite3.DatabaseError: the file isn't a database, is damaged, or contains more than tables and their indexes.
    """
    size_bytes = os.path.getsize(path) if os.path.exists(path) else 0
    connection = _bounded(sqlite3.connect(path, isolation_level=None, factory=_Bounded), size_bytes)
    # Writing has no step limit. The integrity check visits each page once, so pages can't form cycles.
    connection.set_progress_handler(None, 0)
    wrong = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if size_bytes else "ok"
    if wrong != "ok":
        connection.close()
        raise sqlite3.DatabaseError(str(wrong)[:200])
    return connection


def _bounded(connection: _Bounded, size_bytes: int) -> sqlite3.Connection:
    try:
        connection.bound(size_bytes)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_tables(connection: sqlite3.Connection) -> None:
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        virtual = kind == "table" and str(sql).lstrip()[:14].upper() == "CREATE VIRTUAL"
        if kind not in ("table", "index") or virtual:
            raise sqlite3.DatabaseError(
                f"a {'virtual table' if virtual else kind} {name!r:.80}: only plain tables are allowed"
            )
        if kind == "table" and _is_computed(connection, name):
            raise sqlite3.DatabaseError(f"the table {name!r:.80} has a computed column: only plain tables are allowed")


def _is_computed(connection: sqlite3.Connection, table: str) -> bool:
    columns = connection.execute("SELECT hidden FROM pragma_table_xinfo(?)", (table,))
    return any(hidden for (hidden,) in columns)

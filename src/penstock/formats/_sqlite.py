"""Databases of sqlite in any store, read only."""

from __future__ import annotations

import sqlite3
from urllib.parse import quote

from penstock.abc import Store, SupportsCopies
from penstock.store._copies import NoCopy
from penstock.store.local import LocalStore
from penstock.store.resolve import absolute

_FORMAT_BYTES = slice(18, 20)
_NOT_A_WAL = b"\1\1"


def connect(store: Store, path: str) -> sqlite3.Connection:
    """A read-only connection to a database of any store; a remote one is read whole."""
    local = path
    if not isinstance(store, LocalStore):
        copy = _copy(store, path)
        if not isinstance(copy, str):
            return _in_memory(copy)
        local = copy
    uri = f"file:{quote(absolute(local))}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16)


def _copy(store: Store, path: str) -> str | bytearray:
    """Path of a copy, or the bytes where the store keeps none, or has no room for one."""
    if not isinstance(store, SupportsCopies):
        return bytearray(store.get(path))
    try:
        return store.local_copy(path)
    except NoCopy:
        return bytearray(store.mapped_copy(path))


def _in_memory(data: bytearray) -> sqlite3.Connection:
    # One in memory has no write-ahead log beside it, whatever its header says.
    data[_FORMAT_BYTES] = _NOT_A_WAL
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.deserialize(bytes(data))
    return connection

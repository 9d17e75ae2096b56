"""Databases of sqlite in any store, read only."""

from __future__ import annotations

import sqlite3
from urllib.parse import quote

from penstock.abc import Store, SupportsCopies
from penstock.store.local import LocalStore
from penstock.store.resolve import absolute

_FORMAT_BYTES = slice(18, 20)
_NOT_A_WAL = b"\1\1"


def connect(store: Store, path: str) -> sqlite3.Connection:
    """A read-only connection to a database of any store; a remote one is read whole."""
    if isinstance(store, LocalStore):
        local = store.real_path(path)
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
    return sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16)

"""Remote databases where the cache folder has no room for a copy."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.formats.samples.sqlite import connect
from penstock.store import _copies
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore
from penstock.testing import FileServer


@pytest.mark.parametrize("full", [False, True])
def test_a_database_is_read_from_memory_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    with sqlite3.connect(tmp_path / "a.db") as made:
        made.execute("create table names (name text)")
        made.executemany("insert into names values (?)", [(f"n{n}",) for n in range(100)])
    made.close()
    if full:
        disk = shutil.disk_usage("/")
        monkeypatch.setattr(_copies.shutil, "disk_usage", lambda path: disk._replace(free=0))
    with FileServer({"a.db": (tmp_path / "a.db").read_bytes()}) as server:
        store = CachedStore(RemoteStore(server.url), str(tmp_path / "cache"))
        opened = connect(store, f"{server.url}/a.db")
        assert opened.execute("select count(*), max(name) from names").fetchone() == (100, "n99")
        opened.close()
    assert bool(list((tmp_path / "cache").glob("remote/*.copy"))) != full

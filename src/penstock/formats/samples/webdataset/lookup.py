"""Find samples and parts by name in `index.sqlite` of any version of Energon, or else in `index.keys`.

Without either, an index of keys is made once per host and cached.

| version | `samples` | `sample_parts` |
|---|---|---|
| up to 5.2 | no `index.sqlite` | no `index.sqlite` |
| 6.x | keys may repeat | none: parts are found by the headers of their samples |
| 7.0–7.2 | keys may repeat | yes |
| from 7.3 | keys are unique | yes |
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock._secrets import logger
from penstock.errors import Corrupt
from penstock.formats.samples.sqlite import connect, raise_system_error
from penstock.formats.samples.webdataset.key_index import KeyIndex, KeyPlace, KeyRuns, mapped_keys, stored_keys
from penstock.formats.samples.webdataset.nvmeta import prepare_command, root_of
from penstock.formats.samples.webdataset.shards import ShardTable, scan_shard
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key, sample_fingerprint

_log = logger()
_VERSION = "webdataset-keys-2"
_AGAIN = "Prepare the dataset again: `penstock prepare`"


class Keys:
    """Keys of a dataset, of all its splits. Thread-safe, picklable. Memory: see `KeyIndex`.

    Args:
        store: the store of the dataset.
        root: its folder.
        counts: shard → number of its samples, in the order of shard numbers.
    """

    def __init__(self, store: Store, root: str, counts: Mapping[str, int]) -> None:
        self._store = store
        self._root = root
        self._counts = counts
        self._stored: KeyIndex | None = None
        self._derived: KeyIndex | None = None
        self._looked = False
        self._of_shard: tuple[int, dict[str, int]] = (-1, {})

    def __reduce__(self) -> tuple[object, ...]:
        return (Keys, (self._store, self._root, self._counts))

    @property
    def stored(self) -> KeyIndex | None:
        if not self._looked:
            # Two threads may both get here. They find the same index, and one copy is freed.
            self._stored = stored_keys(self._store, self._root, self._counts)
            self._looked = True
        return self._stored

    def find(self, key: str) -> KeyPlace | None:
        """Return the place of the sample with this key, or None.

        Raises:
            Corrupt: two samples have the key, or the index or a shard is damaged.
        """
        index = self._index()
        found = index.find(key)
        if len(found) > 1:
            raise repeated(key, index.path)
        return found[0] if found else None

    def find_in(self, key: str, shard: int) -> int | None:
        """Return the place of the first sample with this key in one shard, if keys may repeat in other shards."""
        index = self.stored or self._derived
        if index is not None:
            return next((one.place for one in index.find(key) if one.shard == shard), None)
        number, places = self._of_shard
        if number != shard:  # lookups come shard by shard, so no other shard is scanned
            keys = self._table(list(self._counts)[shard]).keys
            places = {one: place for place, one in reversed(list(enumerate(keys)))}
            self._of_shard = shard, places
        return places.get(key)

    def _index(self) -> KeyIndex:
        if self.stored is not None:
            return self.stored
        if self._derived is None:
            _log.warning("%s: no key index: scanning all shards once and caching the result", self._root)
            data: Any = DerivedCache().fed(self._key(), "uint8", self._feed)
            self._derived = mapped_keys(data, self._root, self._counts)
        return self._derived

    def _key(self) -> str:
        """Return a cache key for the data: the list of shards, a sample of them, and modification times."""
        parts: list[Any] = [_VERSION, list(self._counts.items())]
        files = [(name, f"{self._root}/{name}") for name in self._counts]
        sample = sample_fingerprint(self._store, "webdataset", b"", files)
        return digest(*parts, files_key(sample, self._store, (path for _, path in files)))

    def _feed(self, put: Any) -> None:
        with KeyRuns() as runs:
            for name in self._counts:
                runs.add(self._table(name))
            runs.write(lambda data: put(np.frombuffer(data, np.uint8)), "")

    def _table(self, name: str) -> ShardTable:
        path, count = f"{self._root}/{name}", self._counts[name]
        table = scan_shard(self._store, path)
        if table.num_samples != count:
            raise Corrupt(
                "a shard doesn't match the list of shards", path=path, found=f"{table.num_samples} samples",
                expected=f"{count} samples", hint=_AGAIN,
            )  # fmt: skip
        return table


def repeated(key: str, path: str) -> Corrupt:
    return Corrupt(
        f"the key {key!r} is in two samples, so it is ambiguous", path=path,
        hint="Read samples by index, or pack the shards again with unique keys",
    )  # fmt: skip


_NEEDED = {
    "samples": {"tar_file_id", "sample_key", "sample_index", "byte_offset", "byte_size"},
    "sample_parts": {"tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size"},
}
_FIND_PART = (
    "SELECT s.tar_file_id, p.content_byte_offset, p.content_byte_size, s.sample_index FROM samples s "
    "JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index "
    "WHERE s.sample_key = ? AND p.part_name = ? ORDER BY p.content_byte_offset"
)
_FIND_SAMPLE = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ? LIMIT 2"


class SqliteIndex:
    """The index of a dataset, with one connection per thread and process, opened at first use.

    Args:
        store: the store of the dataset.
        path: path of `index.sqlite`.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self.path = path
        self._local = threading.local()
        self._tables: frozenset[str] | None = None
        self._unique = False

    def __reduce__(self) -> tuple[object, ...]:
        return (SqliteIndex, (self._store, self.path))

    @property
    def tables(self) -> frozenset[str]:
        """Existing tables of `samples` and `sample_parts`, with all their columns.

        Raises:
            Corrupt: the file isn't a database, or a table is invalid.
        """
        if self._tables is None:
            try:
                self._tables = self._look()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self.damaged(error) from None
        return self._tables

    def find_part(self, key: str, part: str) -> tuple[int, int, int] | None:
        """Return `(tar_file_id, content_bytes, size_bytes)` of a part, the first if it repeats; needs both tables.

        Raises:
            Corrupt: two samples have the key.
        """
        try:
            connection = self._local.connection if self._local.pid == os.getpid() else self.connection()
        except AttributeError:
            connection = self.connection()
        try:
            rows = connection.execute(_FIND_PART, (key, part))
            row = rows.fetchone()
            others = () if self._unique else rows.fetchall()
        except UnicodeEncodeError:
            return None  # not UTF-8: the index can't hold it
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.damaged(error) from None
        if row is None:
            return None
        if any((other[0], other[3]) != (row[0], row[3]) for other in others):
            raise repeated(key, self.path)
        file_id, content, size, _ = row
        if not (type(file_id) is type(content) is type(size) is int):
            raise self.damaged("an offset that is not a number")
        return file_id, content, size

    def find_sample(self, key: str) -> tuple[int, int] | None:
        """Return `(tar_file_id, sample_index)` of a key; needs the table `samples`.

        Raises:
            Corrupt: two samples have the key.
        """
        try:
            rows = self.connection().execute(_FIND_SAMPLE, (key,)).fetchall()
        except UnicodeEncodeError:
            return None
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.damaged(error) from None
        if len(rows) > 1:
            raise repeated(key, self.path)
        if not rows:
            return None
        file_id, place = rows[0]
        if not (type(file_id) is type(place) is int):
            raise self.damaged("an offset that is not a number")
        return file_id, place

    def place_in_shard(self, key: str, file_id: int) -> int | None:
        """Return `sample_index` of a key in one shard, as keys may repeat in others; needs the table `samples`."""
        query = "SELECT sample_index FROM samples WHERE sample_key = ? AND tar_file_id = ? LIMIT 1"
        try:
            row = self.connection().execute(query, (key, file_id)).fetchone()
        except UnicodeEncodeError:
            return None
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.damaged(error) from None
        return row[0] if row is not None and type(row[0]) is int else None

    def connection(self) -> sqlite3.Connection:
        """Return this thread's connection; raise `Corrupt` if the file isn't a permitted database."""
        local = self._local
        if getattr(local, "pid", None) != os.getpid():
            try:
                connection = connect(self._store, self.path)
                connection.execute("PRAGMA mmap_size=1073741824").fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self.damaged(error) from None
            local.connection = connection
            local.pid = os.getpid()
        return local.connection

    def damaged(self, error: object) -> Corrupt:
        """Return the error for an invalid database; raise `OSError` if the system failed."""
        if isinstance(error, sqlite3.Error):
            raise_system_error(error, self.path)
        hint = f"Rebuild it: {prepare_command(root_of(self.path), '--tar-index-only')}"
        return Corrupt("not a valid sample index", path=self.path, found=str(error), hint=hint)

    def _look(self) -> frozenset[str]:
        connection = self.connection()
        kinds = dict(connection.execute("SELECT name, type FROM sqlite_master").fetchall())
        found: set[str] = set()
        for table, needed in _NEEDED.items():
            if table not in kinds:
                continue
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if kinds[table] != "table" or not needed <= columns:
                raise self.damaged(f"{kinds[table]} {table} with the columns {', '.join(sorted(columns))}")
            found.add(table)
        if "samples" not in found:
            found.clear()
        self._unique = any(_is_of_key(connection, row) for row in connection.execute("PRAGMA index_list(samples)"))
        return frozenset(found)


def _is_of_key(connection: sqlite3.Connection, index: tuple[Any, ...]) -> bool:
    name, unique = index[1], index[2]
    columns = [row[2] for row in connection.execute("SELECT * FROM pragma_index_info(?)", (name,))]
    return bool(unique) and columns == ["sample_key"]

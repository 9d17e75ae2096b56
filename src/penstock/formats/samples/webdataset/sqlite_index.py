"""Make `index.sqlite`: the place of each sample and each of its parts, by name.

| table | columns |
|---|---|
| `samples` | `tar_file_id`, `sample_key` (unique), `sample_index` in its shard, `byte_offset`, `byte_size` |
| `sample_parts` | `tar_file_id`, `sample_index`, `part_name`, `content_byte_offset`, `content_byte_size` |

`tar_file_id` is the position of a shard in `.info.json`. A sample's bytes are those from its first header to the next
sample's; a part's bytes are only its content. Tables, indexes and pragmas are those of Energon 7.4. Rows are in the
order of shards and samples. Indexes are made by sorting after all rows are inserted, so the rate is independent of the
size.
"""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec
import numpy as np

from penstock.errors import Corrupt
from penstock.formats.samples.sqlite import raise_system_error, system_errors
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.store.place import absolute
from penstock.types import IntArray

_SAMPLES = (
    "CREATE TABLE samples ( tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL{unique}, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER )"
)
_PARTS = (
    "CREATE TABLE sample_parts ( tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER )"
)
_INDEXES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON sample_parts"
    "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)
_CACHE_KIB = 1 << 16
_MOST_NAMED = 5


class SqliteBuilder:
    """Builder of one `index.sqlite` as a plain file, which isn't read before it is finished. Memory: about 100 MiB.

    Args:
        path: path of the file, which doesn't exist yet.

    Raises:
        OSError: the system failed, such as for a full disk; also for uses of `connection` in a `with` block.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        pragmas = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", f"cache_size=-{_CACHE_KIB}")
        with system_errors(path):
            self._connection = sqlite3.connect(path, isolation_level=None, uri=True)
            for pragma in pragmas:
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self._connection.execute("BEGIN")
            self._connection.execute(_SAMPLES.format(unique=""))
            self._connection.execute(_PARTS)

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    def add(self, file_id: int, table: ShardTable) -> None:
        """Add the rows of one shard; shards must be added in the order of their numbers."""
        count = table.num_samples
        places = range(count)
        offsets = table.offsets.tolist()
        lengths = np.diff(table.offsets).tolist()
        same = [file_id] * count
        samples = zip(same, table.keys, places, offsets[:-1], lengths, strict=True)
        of_sample = np.repeat(np.arange(count), np.diff(table.part_starts)).tolist()
        same = [file_id] * len(of_sample)
        parts = zip(same, of_sample, table.part_names, table.contents.tolist(), table.sizes.tolist(), strict=True)
        with system_errors(self.path):
            self._connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
            self._connection.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)

    def end_run(self) -> None:
        """Close the file without indexes, as a run for `merge`."""
        with system_errors(self.path):
            self._connection.execute("COMMIT")
        self.close()

    def merge(self, path: str) -> None:
        """Add the rows of a run, of the next shards; SQLite copies them in their stored form."""
        with system_errors(self.path):
            self._connection.execute("COMMIT")  # a database can only be attached outside of a transaction
            self._connection.execute("ATTACH ? AS run", (f"file:{quote(absolute(path))}?mode=ro",))
            self._connection.execute("BEGIN")
            for table in ("samples", "sample_parts"):
                self._connection.execute(f"INSERT INTO {table} SELECT * FROM run.{table}")
            self._connection.execute("COMMIT")
            self._connection.execute("DETACH run")
            self._connection.execute("BEGIN")

    def finish(self, shards: Sequence[str]) -> None:
        """Make the indexes and close the file.

        Args:
            shards: paths of the shards by number, for messages.

        Raises:
            Corrupt: two shards have the same key; the error names both places.
        """
        with system_errors(self.path):
            self._finish(shards)
        self.close()
        _forget_commits(self.path)

    def _finish(self, shards: Sequence[str]) -> None:
        run = self._connection.execute
        try:
            run("CREATE UNIQUE INDEX unique_key ON samples(sample_key)")
        except sqlite3.IntegrityError:
            raise self._repeated(shards) from None
        for statement in _INDEXES:
            run(statement)
        # A sorted index serves the constraint as well as one updated by each insert, which gets ever slower.
        run("PRAGMA writable_schema=ON")
        changed = "UPDATE sqlite_master SET {} WHERE name = ?"
        run(changed.format("sql = ?"), (_SAMPLES.format(unique=" UNIQUE"), "samples"))
        run(changed.format("name = 'sqlite_autoindex_samples_1', sql = NULL"), ("unique_key",))
        run("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
        if isinstance(error, sqlite3.Error):
            raise_system_error(error, self.path)

    def _repeated(self, shards: Sequence[str]) -> Corrupt:
        rows = self._connection.execute(
            "SELECT sample_key, COUNT(*) FROM samples GROUP BY sample_key HAVING COUNT(*) > 1 ORDER BY MIN(rowid)"
        )
        first, count = None, 0
        for key, _ in rows:
            first = first or key
            count += 1
        query = "SELECT tar_file_id, byte_offset FROM samples WHERE sample_key = ? ORDER BY rowid LIMIT 2"
        places: list[tuple[int, int]] = self._connection.execute(query, (first,)).fetchall()
        (id_1, at_1), (id_2, at_2) = places
        return Corrupt(
            f"the key {first!r} is used twice: keys in a dataset must be unique",
            path=shards[id_2],
            offset_bytes=at_2,
            found=f"first in {shards[id_1]} at byte {at_1}, again in {shards[id_2]} at byte {at_2}; {count} such keys",
            hint="Prepare the shards without the index that needs unique keys (--no-sqlite, sqlite=False), or "
            "prefix the keys with shard names: `penstock merge FOLDER -o NEW --prefix-keys`",
        )


def _forget_commits(path: str) -> None:
    """Set the change counters to one, so that the bytes only depend on the rows, not on the number of transactions."""
    with open(path, "r+b") as file:
        for place in (24, 92):
            file.seek(place)
            file.write((1).to_bytes(4, "big"))


# --- a shard's table as bytes ------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, array_like=True):
    """Stored table of a shard. Texts are joined by NULs, which no name contains; numbers are int64, little-endian."""

    num_keys: int
    keys: bytes
    offsets: bytes
    part_starts: bytes
    part_names: bytes
    contents: bytes
    sizes: bytes


def encode_table(table: ShardTable) -> bytes:
    """Return the bytes of a table, equal for equal tables."""
    numbers = (table.offsets, table.part_starts, table.contents, table.sizes)
    offsets, part_starts, contents, sizes = (one.astype("<i8").tobytes() for one in numbers)
    stored = _Stored(
        table.num_samples, _joined(table.keys), offsets, part_starts, _joined(table.part_names), contents, sizes
    )
    return msgspec.msgpack.encode(stored)


def decode_table(data: bytes, path: str) -> ShardTable:
    """Return the table encoded by `encode_table`; raise `Corrupt` for other bytes."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
        table = ShardTable(
            _split(stored.keys, stored.num_keys),
            _numbers(stored.offsets),
            _numbers(stored.part_starts),
            _split(stored.part_names, len(stored.sizes) // 8),
            _numbers(stored.contents),
            _numbers(stored.sizes),
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt("the table of a shard is damaged", path=path, found=str(error)) from None
    if len(table.offsets) != len(table.keys) + 1 or len(table.part_starts) != len(table.offsets):
        raise Corrupt("the table of a shard is damaged", path=path)
    return table


def _joined(names: list[str]) -> bytes:
    return "\0".join(names).encode("utf-8", "surrogateescape")


def _split(data: bytes, count: int) -> list[str]:
    names = data.decode("utf-8", "surrogateescape").split("\0") if count else []
    if len(names) != count:
        raise ValueError(f"{len(names)} names instead of {count}")
    return names


def _numbers(data: bytes) -> IntArray:
    return np.frombuffer(data, "<i8").astype(np.int64)


def table_digest(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=32).digest()


class IndexDigest:
    """Digest of the tables of all shards, in order."""

    def __init__(self) -> None:
        self._hasher = hashlib.blake2b(b"energon index", digest_size=16)

    def add(self, shard: str, digest: bytes) -> None:
        """Add a shard: its name in the dataset, and the digest of its table."""
        name = shard.encode("utf-8", "surrogateescape")
        self._hasher.update(len(name).to_bytes(8, "little") + name)
        self._hasher.update(digest)

    def uuid(self) -> str:
        """Return 36 characters for `index.uuid`, which are equal only for equal content."""
        return str(uuid.UUID(bytes=self._hasher.digest(), version=4))

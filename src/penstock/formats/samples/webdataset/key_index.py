"""`index.keys`: the place of the sample with a key, found by two small reads for any number of samples.

| bytes | content |
|---|---|
| 0 … 64 | `PSKEYS01`, uint64 samples, uint64 bits of a bucket number, the 36 bytes of `index.uuid`, zeros |
| 64 … | sorted 40-byte entries: xxh3-128 of the key as two uint64, offset, size, shard · 2^32 + place in it |
| … | uint64[2^bits + 1]: first entry of each bucket; the bucket of a hash is its first bits |
| … end | xxh3-128 of all preceding bytes, checked by `verify --depth full` |

All numbers are little-endian. The file is next to `index.sqlite`, which readers of a remote dataset would have to
download completely. It is merged from sorted runs and only depends on the shards. It is only valid for the `index.uuid`
that it contains, which changes if the dataset is prepared again.
"""

from __future__ import annotations

import bisect
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.errors import Corrupt, NotFound
from penstock.formats.samples.webdataset.nvmeta import FOLDER, meta_path, prepare_command, read_uuid, root_of
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.store.base import Store

KEYS = "index.keys"
HEADER_BYTES, ENTRY_BYTES = 64, 40
_DIGEST_BYTES, _STEP_BYTES = 16, 1 << 24
_MAGIC = b"PSKEYS01"
_HEADER = struct.Struct("<8sQQ36s4x")
_WORDS = ENTRY_BYTES // 8
_BUCKET = 64
"""Average number of entries per bucket, at least; less than twice as many."""
_MOST_IN_BUCKET = 1 << 14
_MOST_BITS = 40
_KEPT_BYTES = 1 << 16
"""Size up to which a table of buckets is read once and kept."""
_MERGED = 1 << 19
"""Average number of entries to merge at once: 20 MiB."""

Read = Callable[[int, int], bytes]
"""Function that returns the bytes `[start, stop)`."""
Put = Callable[[bytes], object]
"""Function that receives the next bytes of a file."""
Entries = NDArray[np.uint64]
"""uint64[n, 5], little-endian."""


class KeyPlace(NamedTuple):
    """Place of a sample: number of its shard, place in it, and its byte range."""

    shard: int
    place: int
    start_bytes: int
    stop_bytes: int


# --- made --------------------------------------------------------------------------------------------------------


def entries_of(tables: Sequence[tuple[int, ShardTable]]) -> Entries:
    """Return a sorted run: the entries of some shards, each passed with its number."""
    runs = [np.empty((0, _WORDS), "<u8")]
    for number, table in tables:
        one = np.empty((table.num_samples, _WORDS), "<u8")
        digests = b"".join(xxhash.xxh3_128_digest(key.encode("utf-8", "surrogateescape")) for key in table.keys)
        one[:, :2] = np.frombuffer(digests, ">u8").reshape(-1, 2)
        one[:, 2] = table.offsets[:-1]
        one[:, 3] = np.diff(table.offsets)
        one[:, 4] = np.arange(table.num_samples) + (number << 32)
        runs.append(one)
    return sorted_entries(np.concatenate(runs))


def read_run(path: str) -> Entries:
    entries = np.memmap(path, "<u8", "r") if _size(path) else np.empty(0, "<u8")
    return entries.reshape(-1, _WORDS)


def write_keys(put: Put, uuid: str, runs: Sequence[Entries]) -> int:
    """Merge sorted runs into the bytes of an index. Memory: about 100 MiB, and 1/8 byte per sample.

    Args:
        put: receives the bytes in pieces.
        uuid: content of `index.uuid`.
        runs: results of `entries_of`.

    Returns:
        The number of samples with a repeated key.
    """
    repeated = 0
    count = sum(map(len, runs))
    bits = max(0, (count // _BUCKET).bit_length() - 1)
    hasher = xxhash.xxh3_128()

    def put_digested(data: bytes) -> None:
        hasher.update(data)
        put(data)

    put_digested(_HEADER.pack(_MAGIC, count, bits, uuid.encode()))
    in_bucket = np.zeros(1 << bits, np.int64)
    for block in _merged(runs, count):
        put_digested(block.tobytes())
        repeated += int((block[1:, :2] == block[:-1, :2]).all(axis=1).sum())
        # Shifting by all 64 bits has no effect in numpy.
        numbers = (block[:, 0] >> np.uint64(64 - bits)) if bits else np.zeros(len(block), np.uint64)
        first = int(numbers[0]) if len(numbers) else 0
        here = np.bincount((numbers - np.uint64(first)).astype(np.int64))
        in_bucket[first : first + len(here)] += here
    put_digested(np.concatenate([[0], np.cumsum(in_bucket)]).astype("<u8").tobytes())
    put(hasher.digest())
    return repeated


class KeyRuns:
    """Runs of consecutive shards in a temporary file until they are merged; a context manager."""

    def __init__(self) -> None:
        self._spooled = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115
        self._lengths: list[int] = []

    def add(self, table: ShardTable) -> None:
        self._spooled.write(entries_of([(len(self._lengths), table)]).tobytes())
        self._lengths.append(table.num_samples)

    def write(self, put: Put, uuid: str) -> None:
        self._spooled.flush()
        entries = np.memmap(self._spooled, "<u8", "r").reshape(-1, _WORDS) if sum(self._lengths) else entries_of([])
        stops = np.cumsum(self._lengths, dtype=np.int64).tolist()
        runs = [entries[stop - length : stop] for stop, length in zip(stops, self._lengths, strict=True)]
        write_keys(put, uuid, runs)

    def close(self) -> None:
        self._spooled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None:
        self.close()


def _merged(runs: Sequence[Entries], count: int) -> Iterator[Entries]:
    """Yield all entries in order, one range of hashes of every run at a time."""
    passes = -(-count // _MERGED)
    firsts = [0] * len(runs)
    for number in range(1, passes + 1):
        below = (number << 64) // passes
        stops = [_first_from(run, below, first) for run, first in zip(runs, firsts, strict=True)]
        yield sorted_entries(
            np.concatenate([run[first:stop] for run, first, stop in zip(runs, firsts, stops, strict=True)])
        )
        firsts = stops


def _first_from(run: Entries, hashed: int, first: int) -> int:
    return bisect.bisect_left(range(len(run)), hashed, first, key=lambda at: int(run[at, 0]))


def sorted_entries(entries: Entries) -> Entries:
    return entries[np.lexsort((entries[:, 4], entries[:, 1], entries[:, 0]))]


def _size(path: str) -> int:
    with open(path, "rb") as file:
        return file.seek(0, 2)


# --- read --------------------------------------------------------------------------------------------------------


class KeyIndex:
    """Index of keys that keeps only a small table of buckets in memory. Thread-safe.

    Args:
        read: returns its bytes; fewer at the end.
        path: for errors.
        counts: number of samples of each shard, by shard number.
        uuid: the UUID it must contain.

    Raises:
        Corrupt: the file isn't an index of keys, or is that of another dataset.
    """

    def __init__(self, read: Read, path: str, counts: Sequence[int], uuid: str) -> None:
        self.path = path
        self._read = read
        self._counts = counts
        head = read(0, HEADER_BYTES)
        if len(head) < HEADER_BYTES or not head.startswith(_MAGIC):
            raise self._damaged("no header")
        _, self._count, self._bits, named = _HEADER.unpack(head)
        self._buckets_at = HEADER_BYTES + self._count * ENTRY_BYTES
        if self._count != sum(counts) or named.rstrip(b"\0") != uuid.encode():
            raise self._damaged("it belongs to another dataset")
        if self._bits > _MOST_BITS:
            raise self._damaged(f"{self._bits} bits")
        self._buckets_bytes = ((1 << self._bits) + 1) * 8
        kept = self._buckets_bytes <= _KEPT_BYTES
        self._buckets = read(self._buckets_at, self._buckets_at + self._buckets_bytes) if kept else None

    @property
    def size_bytes(self) -> int:
        """Size of the whole file according to its header."""
        return self._buckets_at + self._buckets_bytes + _DIGEST_BYTES

    def is_whole(self) -> bool:
        """Return true if the digest matches the bytes, all of which are read."""
        stop = self.size_bytes - _DIGEST_BYTES
        hasher = xxhash.xxh3_128()
        for start in range(0, stop, _STEP_BYTES):
            hasher.update(self._read(start, min(stop, start + _STEP_BYTES)))
        return self._read(stop, self.size_bytes) == hasher.digest()

    def find(self, key: str) -> list[KeyPlace]:
        """Return the places of the samples with a key; several if the key is repeated.

        Raises:
            Corrupt: the index is damaged.
        """
        try:
            hashed = xxhash.xxh3_128_digest(key.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            return []
        high, low = struct.unpack(">QQ", hashed)
        first, stop = self._bucket(high >> (64 - self._bits))
        data = self._read(HEADER_BYTES + first * ENTRY_BYTES, HEADER_BYTES + stop * ENTRY_BYTES)
        entries = np.frombuffer(data, "<u8")
        if len(entries) != (stop - first) * _WORDS:
            raise self._damaged("it ends in the middle of its entries")
        entries = entries.reshape(-1, _WORDS)
        return [self._place(row) for row in entries[(entries[:, 0] == high) & (entries[:, 1] == low)].tolist()]

    def _bucket(self, number: int) -> tuple[int, int]:
        at = number * 8
        if self._buckets is not None:
            both = self._buckets[at : at + 16]
        else:
            both = self._read(self._buckets_at + at, self._buckets_at + at + 16)
        if len(both) != 16:
            raise self._damaged("it ends in the middle of its table")
        first, stop = struct.unpack("<QQ", both)
        if not first <= stop <= self._count or stop - first > _MOST_IN_BUCKET:
            raise self._damaged(f"a bucket with entries {first} to {stop}")
        return first, stop

    def _place(self, row: list[int]) -> KeyPlace:
        _, _, start, size, both = row
        shard, place = both >> 32, both & 0xFFFFFFFF
        if shard >= len(self._counts) or place >= self._counts[shard]:
            raise self._damaged(f"sample {place} of shard number {shard}")
        return KeyPlace(shard, place, start, start + size)

    def _damaged(self, found: str) -> Corrupt:
        hint = f"Rebuild it: {prepare_command(root_of(self.path), '--tar-index-only')}, or remove it"
        return Corrupt("the key index doesn't match this dataset", path=self.path, found=found, hint=hint)


def stored_keys(store: Store, root: str, counts: Mapping[str, int]) -> KeyIndex | None:
    """Return the index next to the data, or None if it doesn't exist or belongs to an earlier version of the data.

    Raises:
        Corrupt: the index is damaged.
    """
    path = meta_path(root, KEYS)
    try:
        named = store.get_ranges(path, [(0, HEADER_BYTES)])[0]
        uuid = read_uuid(store, root)
    except NotFound:
        return None
    if len(named) == HEADER_BYTES and named.startswith(_MAGIC):
        _, count, _, of = _HEADER.unpack(named)
        if (count, of.rstrip(b"\0")) != (sum(counts.values()), uuid.encode()):
            return None
    known = {(0, HEADER_BYTES): named}

    def read(start: int, stop: int) -> bytes:
        return known.get((start, stop)) or store.get_ranges(path, [(start, stop)])[0]

    return KeyIndex(read, path, list(counts.values()), uuid)


def mapped_keys(data: NDArray[np.uint8], root: str, counts: Mapping[str, int]) -> KeyIndex:
    """Return an index from bytes of the local cache, which belongs to no UUID."""

    def read(start: int, stop: int) -> bytes:
        return data[start:stop].tobytes()

    return KeyIndex(read, f"{root}/{FOLDER}", list(counts.values()), "")

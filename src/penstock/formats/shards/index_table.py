"""An index as opened by a source: a small one is parsed, a large one is converted to a table once per host.

An `index.json` of 10^6 shards has 300 MB, and parsing it takes seconds and close to a gigabyte, in each rank of a host.
So it is parsed once, run by run, into a file that every process maps (`penstock.store.derived`):

| bytes | content |
|---|---|
| … | one entry per shard, as MessagePack, back to back; then zeros up to a multiple of 8 |
| i64 × (n + 1) | start of each entry, and the end of the last |
| i64 × (n + 1) | first sample of each shard, and the number of samples |
| … | `Facts` as MessagePack, then zeros up to a multiple of 8 |
| i64 × 2 | n, bytes of the facts |

Runs are split at `}, {`, which usually is the border of two shards. Text split in a wrong place can't be parsed. Then,
and if a run is invalid in any other way, the whole index is parsed at once, so all errors are those of `parse_index`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.formats.shards.index_json import (
    INDEX_NAME,
    Layout,
    Shard,
    ShardFile,
    parse_index,
    parse_run,
    require_version,
)
from penstock.store.base import Store
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import OpenedFile, file_key, opened_file
from penstock.store.progress import report
from penstock.types import IntArray

FINGERPRINT_FILES = 16
_VERSION = "shards-index-1"
_SMALL_BYTES = 1 << 20  # parsing takes less time than a lock and a new file
_RUN_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_OPENING = re.compile(rb'"shards"\s*:\s*\[')
_BORDER = re.compile(rb"\}\s*(,)\s*\{")


class Facts(msgspec.Struct, array_like=True):
    """Properties of all shards together.

    Attributes:
        layouts: layouts of the shards, each with the number of the first shard that has it.
        hash_names: sets of algorithms of the digests of files, each with the first shard of such a file.
        stored_bytes: size of all shards and meta files as stored.
        largest_bytes: size of the largest data file.
        zipped: some shard is compressed.
        unchecked: some shard is not compressed, and has hashes.
        first_files: `(name, shard, is_meta)` of the files that a fingerprint samples.
        digest: xxh3-128 of the index; empty if it wasn't computed.
    """

    layouts: list[tuple[int, Layout]] = []
    hash_names: list[tuple[int, tuple[str, ...]]] = []
    stored_bytes: int = 0
    largest_bytes: int = 0
    zipped: bool = False
    unchecked: bool = False
    first_files: list[tuple[str, int, bool]] = []
    digest: bytes = b""


class _File(msgspec.Struct, array_like=True, gc=False):
    name: str
    size_bytes: int
    hashes: dict[str, str]


class _Entry(msgspec.Struct, array_like=True, gc=False):
    layout: int
    samples: int
    raw_data: _File
    zip_data: _File | None
    raw_meta: _File | None
    zip_meta: _File | None


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """The shards of an index and the properties that a source needs.

    Attributes:
        shards: in order; created on demand in a large index.
        starts: int64[n_shards + 1]: first sample of each shard, and the number of samples at the end.
        facts: properties of all shards.
        file: the local index file and its state before it was read.
    """

    shards: Sequence[Shard]
    starts: IntArray
    facts: Facts
    file: OpenedFile | None = None


def open_index(store: Store, folder: str) -> OpenIndex:
    """Open the index of a folder. Raises `NotFound` and the errors of `parse_index`.

    Memory: for a large index, the pages in use; and 32 bytes per shard in the process that makes the table.
    """
    path = f"{folder}/{INDEX_NAME}"
    file = opened_file(store, path)
    head = store.get(path, 0, _SMALL_BYTES)
    if len(head) < _SMALL_BYTES:
        index = parse_index(head, path)
        return OpenIndex(index.shards, index.starts, facts_of(index.shards), file)
    if store.is_local:
        return _of_table(_kept(file_key(store, "shards", path), partial(_pieces, store, path), path), file)
    data = store.mapped_copy(path).data if store.keeps_copies else memoryview(store.get(path))
    return _of_table(_kept(xxhash.xxh3_128_hexdigest(data), partial(_cut, data), path))


def _pieces(store: Store, path: str) -> Iterator[bytes]:
    start, size_bytes = 0, store.size(path)
    while piece := store.get(path, start, _RUN_BYTES):
        yield piece
        start += len(piece)
        report("bytes of the index", start, size_bytes)


def _cut(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), _RUN_BYTES):
        yield bytes(data[start : start + _RUN_BYTES])
        report("bytes of the index", start, len(data))


def _kept(key: str, read: Callable[[], Iterator[bytes]], path: str) -> NDArray[np.uint8]:
    """Return the table of an index, made if it is missing; `read` yields the index in pieces."""

    def in_runs(put: Put) -> None:
        digest = xxhash.xxh3_128()
        _put_table(put, _runs(_hashed(read(), digest)), digest)

    def whole(put: Put) -> None:
        data = b"".join(read())
        _put_table(put, [parse_index(data, path).shards], xxhash.xxh3_128(data))

    name = f"{_VERSION}-{key}"
    try:
        return DerivedCache().fed(name, "uint8", in_runs)
    except _NotInRuns:
        return DerivedCache().fed(name, "uint8", whole)


def _hashed(pieces: Iterator[bytes], digest: xxhash.xxh3_128) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def facts_of(shards: Iterable[Shard]) -> Facts:
    """Return the facts of parsed shards."""
    gathered = _Gathered()
    for shard in shards:
        gathered.add(shard)
    return gathered.found()


# --- reading the table -------------------------------------------------------------------------------------------


class _Shards(Sequence[Shard]):
    """Shards of a table."""

    __slots__ = ("_borders", "_entries", "_layouts")

    def __init__(self, entries: NDArray[np.uint8], borders: IntArray, layouts: list[Layout]) -> None:
        self._entries = entries.data
        self._borders = borders
        self._layouts = layouts

    def __len__(self) -> int:
        return len(self._borders) - 1

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | Sequence[Shard]:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self[one] for one in number]
        start, stop = self._borders[number : number + 2].tolist()
        one = _decode_entry(self._entries[start:stop])
        return Shard(
            self._layouts[one.layout], one.samples, _whole(one.raw_data),
            *(None if file is None else _whole(file) for file in (one.zip_data, one.raw_meta, one.zip_meta)),
        )  # fmt: skip


_decode_entry = msgspec.msgpack.Decoder(_Entry).decode


def _whole(file: _File) -> ShardFile:
    return ShardFile(file.name, file.size_bytes, file.hashes)


def _of_table(table: NDArray[np.uint8], file: OpenedFile | None = None) -> OpenIndex:
    count, facts_bytes = table[-16:].view(np.int64).tolist()
    facts_at = len(table) - 16 - -(-facts_bytes // 8) * 8
    facts = msgspec.msgpack.decode(table[facts_at : facts_at + facts_bytes].data, type=Facts)
    starts_at = facts_at - 8 * (count + 1)
    borders_at = starts_at - 8 * (count + 1)
    borders, starts = table[borders_at:starts_at].view(np.int64), table[starts_at:facts_at].view(np.int64)
    shards = _Shards(table[:borders_at], borders, [layout for _, layout in facts.layouts])
    return OpenIndex(shards, starts, facts, file)


# --- making it ---------------------------------------------------------------------------------------------------


class _NotInRuns(Exception):
    """The index can't be parsed in runs."""


def _put_table(put: Put, runs: Iterable[Sequence[Shard]], digest: xxhash.xxh3_128) -> None:
    """Put the whole table; `digest` is that of the index once all runs are consumed."""
    encode = msgspec.msgpack.Encoder().encode
    facts = _Gathered()
    samples, sizes = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    for run in runs:
        entries = [encode(facts.entry(shard)) for shard in run]
        samples.append(np.array([shard.samples for shard in run], np.int64))
        sizes.append(np.array(list(map(len, entries)), np.int64))
        put(np.frombuffer(b"".join(entries), np.uint8))
    borders = np.cumsum(np.concatenate(sizes))
    put(np.zeros(-int(borders[-1]) % 8, np.uint8))
    put(borders.view(np.uint8))
    put(np.cumsum(np.concatenate(samples)).view(np.uint8))
    last = encode(facts.found(digest.digest()))
    put(np.frombuffer(last + bytes(-len(last) % 8), np.uint8))
    put(np.array([facts.count, len(last)], np.int64).view(np.uint8))


class _Gathered:
    """Collects the facts of shards one by one."""

    def __init__(self) -> None:
        self.count = 0
        self._facts = Facts()
        self._layouts: dict[Layout, tuple[int, int]] = {}
        self._hash_names: dict[tuple[str, ...], int] = {}
        self._last: tuple[Layout | None, int] = (None, 0)
        self._files: list[tuple[int, str, int, bool]] = []  # a heap, the largest digest first

    def entry(self, shard: Shard) -> tuple[Any, ...]:
        """Add a shard; return its table entry as a tuple of the fields of an `_Entry`, which is faster to make."""
        raw, zipped, meta, zip_meta = shard.raw_data, shard.zip_data, shard.raw_meta, shard.zip_meta
        first = self.add(shard), shard.samples, (raw.basename, raw.size_bytes, raw.hashes)
        if zipped is None and meta is None and zip_meta is None:
            return (*first, None, None, None)
        return (*first, *(None if file is None else _stored(file) for file in (zipped, meta, zip_meta)))

    def add(self, shard: Shard) -> int:
        """Add a shard; return the number of its layout."""
        number, facts, raw, zipped, meta = self.count, self._facts, shard.raw_data, shard.zip_data, shard.raw_meta
        self.count += 1
        for file in (raw, zipped, meta, shard.zip_meta):
            if file is not None and (names := tuple(file.hashes)) not in self._hash_names:
                self._hash_names[names] = number
        size_bytes = raw.size_bytes
        if size_bytes > facts.largest_bytes:
            facts.largest_bytes = size_bytes
        facts.stored_bytes += size_bytes if zipped is None else zipped.size_bytes
        self._name(raw, number, False)
        if meta is not None:
            facts.stored_bytes += (shard.zip_meta or meta).size_bytes
            self._name(meta, number, True)
        if zipped is not None:
            facts.zipped = True
        elif raw.hashes:
            facts.unchecked = True
        layout = shard.layout
        if layout is not self._last[0]:  # nearly always the same object, so hashing is avoided
            self._last = layout, self._layouts.setdefault(layout, (len(self._layouts), number))[0]
        return self._last[1]

    def found(self, digest: bytes = b"") -> Facts:
        """Return the facts of all added shards, with the digest of their index."""
        facts = self._facts
        facts.digest = digest
        facts.layouts = [(first, layout) for layout, (_, first) in self._layouts.items()]
        facts.hash_names = [(first, names) for names, first in self._hash_names.items()]
        facts.first_files = [(name, shard, is_meta) for _, name, shard, is_meta in sorted(self._files, reverse=True)]
        return facts

    def _name(self, file: ShardFile, shard: int, is_meta: bool) -> None:
        order = -xxhash.xxh3_128_intdigest(file.basename.encode("utf-8", "surrogateescape"))
        if len(self._files) < FINGERPRINT_FILES:
            heapq.heappush(self._files, (order, file.basename, shard, is_meta))
        elif order > self._files[0][0]:
            heapq.heapreplace(self._files, (order, file.basename, shard, is_meta))


def _stored(file: ShardFile) -> tuple[str, int, dict[str, str]]:
    return file.basename, file.size_bytes, file.hashes


def _runs(pieces: Iterator[bytes]) -> Iterator[Sequence[Shard]]:
    """Yield the shards of an index in runs; raise `_NotInRuns` if the result may be wrong."""
    layouts: dict[tuple[Any, ...], Layout] = {}
    names, total = [np.empty(0, np.uint64)], 0
    try:
        for text in _run_texts(pieces):
            run = parse_run(text, layouts)
            if not run:  # nothing after a final comma
                raise _NotInRuns
            names.append(np.array([*map(_hash, _names_in(run))], np.uint64))
            total += sum([shard.samples for shard in run])
            yield run
    except (PenstockError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _NotInRuns from None
    taken = np.sort(np.concatenate(names))
    if total >= 1 << 63 or (taken[1:] == taken[:-1]).any():
        raise _NotInRuns


def _run_texts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lists of shards as JSON, about as long as a piece; the text around them is validated at the end."""
    rest = next(pieces, b"")
    opening = _OPENING.search(rest, 0, _HEAD_BYTES)
    if opening is None:
        raise _NotInRuns
    head, rest = rest[: opening.end()], rest[opening.end() :]
    for piece in pieces:
        border = _BORDER.search(rest, max(0, len(rest) - _HEAD_BYTES))
        if border is not None:
            yield b"[" + rest[: border.start(1)] + b"]"
            rest = rest[border.end(1) :]
        rest += piece
    stop = rest.rfind(b"]")
    around = head + rest[stop:]
    if stop < 0 or around.count(b'"shards"') != 1 or b"\\" in around:
        raise _NotInRuns
    require_version(around)
    yield b"[" + rest[:stop] + b"]"


def _names_in(run: Sequence[Shard]) -> Iterator[str]:
    for shard in run:
        yield shard.raw_data.basename
        for file in (shard.zip_data, shard.raw_meta, shard.zip_meta):
            if file is not None:
                yield file.basename


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))

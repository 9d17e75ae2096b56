"""Chunk files of one array: mapped if that is safe, else read; and the positions of items in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.errors import Corrupt, NotFound
from penstock.formats._sources import way_to_read
from penstock.formats.tokens.zarr.decode import Damage, crc32c
from penstock.formats.tokens.zarr.meta import ARRAY_FILE, ArrayMeta
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile, opened_file
from penstock.store.mapped import Advice, Held, random_access
from penstock.types import Buffer, IntArray, ReadMode

Mapped: TypeAlias = tuple[NDArray[np.uint8], Advice | None]
"""Whole mapped file, uint8[size_bytes], and a function for readahead of its parts."""

LARGE_BYTES = 1 << 15
"""Size of ranges from which readahead is requested: the request costs little compared with reading them."""

_ABSENT = (1 << 64) - 1
_MOST_SHARDS = 1024
_MOST_STATED = 1 << 16


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Positions of the inner chunks of a shard.

    Attributes:
        places: int64[n_cells, 2]: first byte and length of each; -1 and 0 for one that is not stored.
        flat_cells: number of stored chunks, if they are the first ones, back to back and uncompressed; else None.
    """

    places: IntArray
    flat_cells: int | None


class ChunkFiles:
    """Files by number. Thread-safe, picklable, safe after fork.

    Only the files used last are mapped; see `penstock.store.mapped`.
    """

    __slots__ = (
        "__weakref__",
        "_far",
        "_is_one_piece",
        "_maps",
        "_meta_file",
        "_shards",
        "_stated",
        "folder",
        "mapped",
        "meta",
        "store",
    )

    def __init__(self, store: Store, folder: str, meta: ArrayMeta, read: ReadMode) -> None:
        self.store = store
        self.folder = folder
        self.meta = meta
        self.mapped = way_to_read(store, folder, read) == "mmap"
        self._meta_file = opened_file(store, f"{folder}/{ARRAY_FILE[meta.zarr_format]}")
        self._maps: dict[int, Held[Mapped]] = {}
        self._shards: dict[int, ShardIndex] = {}
        self._far = store if store.keeps_copies else None
        self._stated: set[int] = set()
        codecs = [one.name for one in meta.chain.codecs]
        self._is_one_piece = meta.shard is None and bool(codecs) and "blosc" not in codecs

    def path(self, number: int) -> str:
        return f"{self.folder}/{self.meta.file_name(number)}"

    def require_missing(self, number: int) -> None:
        """Raise an error if the array is missing, not only a file: chunks of a removed array have no fill value.

        Raises:
            NotFound: its metadata is missing.
            Corrupt: the path of the file is a folder or a broken link.
        """
        chunk = self.path(number)
        if self.store.is_local and self.store.exists(chunk):
            try:
                self.store.size(chunk)
            except NotFound as error:
                raise Corrupt("a chunk is not a file", path=chunk, found=error.what, hint="Restore it") from None
        path = f"{self.folder}/{ARRAY_FILE[self.meta.zarr_format]}"
        if not self.store.exists(path):
            raise NotFound("the array disappeared after it was opened", path=path, hint="Open the dataset again")

    def map(self, number: int) -> Mapped | None:
        """Map a file; return None if it has to be read; raise `NotFound`."""
        if not self.mapped:
            return None
        one = self._maps.get(number)
        if one is None:
            one = self._maps.setdefault(number, Held(partial(_map, self.store, self.path(number), self._meta_file)))
        return one.get()

    def size(self, number: int) -> int:
        """Return the size of a file in bytes; raise `NotFound`."""
        one = self._maps.get(number)
        found = None if one is None else one.held()
        if self._far is not None and self._is_one_piece:
            self._far.expect_size(self.path(number), 1, exact=False)  # it is read whole, so its size is known
        return self.store.size(self.path(number)) if found is None else len(found[0])

    def get(self, number: int, start_bytes: int, stop_bytes: int) -> Buffer:
        """Return bytes of a file, fewer at its end; raise `NotFound`."""
        found = self.map(number)
        if found is None:
            data = self.store.get(self.path(number), start_bytes, stop_bytes - start_bytes)
            self._require_same()
            return data
        data, ask = found
        if ask is not None and stop_bytes - start_bytes >= LARGE_BYTES:
            ask(start_bytes, min(stop_bytes, len(data)))
        return data[start_bytes:stop_bytes]

    def get_ranges(self, number: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return ranges of a file that isn't mapped; raise `NotFound`."""
        pieces = self.store.get_ranges(self.path(number), ranges)
        self._require_same()
        return pieces

    def _require_same(self) -> None:
        """Raise `FormatError` if the array was replaced since it was opened."""
        if self._meta_file is not None:
            self._meta_file.require_same()

    def run(self, number: int) -> tuple[int, int]:
        """Return `(first byte, items)` of the items that an uncompressed file holds back to back; `(0, 0)` without any.

        Raises:
            NotFound: a shard is missing; files without shards aren't checked.
            Damage: a shard's index is damaged.
        """
        if self.meta.shard is None:
            self._state_size(number)
            return 0, self.meta.chunk_items
        index = self.shard(number)
        if not index.flat_cells:
            return 0, 0
        return int(index.places[0, 0]), index.flat_cells * self.meta.cell_items

    def _state_size(self, number: int) -> None:
        """Announce the size of a file of unchanged items to a store that would request it."""
        if self._far is not None and number not in self._stated:
            if len(self._stated) >= _MOST_STATED:
                self._stated.clear()
            self._stated.add(number)
            meta = self.meta
            size_bytes = meta.chunk_items * meta.chain.stored.itemsize + meta.chain.checksum_bytes
            self._far.expect_size(self.path(number), size_bytes)

    def shard(self, number: int) -> ShardIndex:
        """Return the index of a shard; raise `NotFound` or `Damage`."""
        found = self._shards.get(number)
        if found is None:
            found = self._read_shard(number)
            if len(self._shards) >= _MOST_SHARDS:
                self._shards.clear()
            self._shards[number] = found
        return found

    def _read_shard(self, number: int) -> ShardIndex:
        meta, size_bytes = self.meta, self.size(number)
        index_bytes = 16 * meta.cells_per_file + 4 * (meta.shard is not None and meta.shard.checksum)
        if size_bytes < index_bytes:
            raise Damage(
                "chunk.size", "a shard is shorter than its index", f"{size_bytes} bytes", f"{index_bytes} bytes"
            )
        start_bytes = size_bytes - index_bytes if meta.shard is not None and meta.shard.at_end else 0
        data = bytes(byte_view(self.get(number, start_bytes, start_bytes + index_bytes)))
        return _parse_shard(data, meta, size_bytes)


def _map(store: Any, path: str, meta_file: OpenedFile | None) -> Mapped:
    data: NDArray[np.uint8] = store.mmap(path)
    if meta_file is not None:
        meta_file.require_same()
    return data, random_access(data)


def _parse_shard(data: bytes, meta: ArrayMeta, size_bytes: int) -> ShardIndex:
    table_bytes = 16 * meta.cells_per_file
    if len(data) > table_bytes:
        found, expected = crc32c(data[:table_bytes]), int.from_bytes(data[table_bytes:], "little")
        if found != expected:
            raise Damage("shard.index_crc", "a shard's index is damaged", f"{found:08x}", f"{expected:08x}")
    table = np.frombuffer(data, "<u8", 2 * meta.cells_per_file).reshape(-1, 2)
    stored = (table != np.uint64(_ABSENT)).all(axis=1)
    inside = (table[:, 0] <= size_bytes) & (table[:, 1] <= np.uint64(size_bytes) - np.minimum(table[:, 0], size_bytes))
    if not (inside | ~stored).all():
        raise Damage("chunk.size", "a shard ends before its inner chunks", f"{size_bytes} bytes")
    places = table.astype(np.int64)
    places[~stored] = (-1, 0)
    return ShardIndex(places, _flat_cells(places, stored, meta))


def _flat_cells(places: IntArray, stored: NDArray[np.bool_], meta: ArrayMeta) -> int | None:
    if not meta.chain.raw or meta.chain.codecs:
        return None
    cell_bytes = meta.cell_items * meta.chain.stored.itemsize
    count = int(stored.sum())
    expected = places[0, 0] + np.arange(count, dtype=np.int64) * cell_bytes
    flat = stored[:count].all() and (places[:count, 0] == expected).all() and (places[:count, 1] == cell_bytes).all()
    return count if flat else None

"""Tokens of litdata's chunks: those of all items back to back."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from penstock._tokens import running
from penstock.errors import Unsupported
from penstock.formats.tokens.ids import FileIds, ids_dtype
from penstock.formats.tokens.litdata.chunks import read_items, read_offsets
from penstock.formats.tokens.litdata.index import Chunk, Index, damaged
from penstock.formats.tokens.litdata.leaves import stored_dtype
from penstock.node.tokens import JoinedIds
from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from penstock.types import Extent, IntArray, ReadMode

_HELD = 2


class ChunkIds(JoinedIds):
    """Tokens of all chunks. Memory: two chunks if they are compressed."""

    def __init__(self, store: Store, index: Index, read: ReadMode) -> None:
        self._args = (store, index, read)
        self._store = store
        self._index = index
        self._read: ReadMode = read
        self._stored = stored_dtype(index.leaves[0], index.path)
        if self._stored.kind not in "iu":
            raise Unsupported("the chunks hold no token ids", path=index.path, found=str(self._stored))
        super().__init__(running([self._count(one) for one in index.chunks]))
        self._held: tuple[tuple[int, FileIds], ...] = ()  # replaced as a whole: threads need no lock
        self._plain: dict[int, FileIds] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ChunkIds, self._args)

    @property
    def dtype(self) -> np.dtype[Any]:
        return ids_dtype(self._stored)

    def piece(self, number: int) -> tuple[FileIds, int]:
        return self._ids(number), 0

    def extent(self, start: int, stop: int) -> Extent:
        """Return the file range of the first of the tokens `[start, stop)`."""
        found = self.extents(start, stop)
        return found[0] if found else Extent(self._index.path, 0, 0)

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        """Return the file ranges of the tokens `[start, stop)`: whole files if they are compressed."""
        found: list[Extent] = []
        for chunk, one in enumerate(self._index.chunks):
            begin, end = self.begins[chunk : chunk + 2].tolist()
            low, high = max(start, begin), min(stop, end)
            if low < high or (start == stop and begin <= start < end):
                at = one.header_bytes + (low - begin) * self._stored.itemsize
                whole = self._index.level is not None
                length = self._store.size(one.path) if whole else max(0, high - low) * self._stored.itemsize
                found.append(Extent(one.path, 0 if whole else at, length))
        return tuple(found)

    def doc_starts(self) -> IntArray:
        """Return the starts of items, int64[n_docs + 1]; reads the head of each chunk, or all of a compressed one."""
        width = self._stored.itemsize
        found: list[IntArray] = [np.zeros(1, np.int64)]
        for chunk, one in enumerate(self._index.chunks):
            offsets = self._offsets(one)
            uneven = np.flatnonzero((offsets - one.header_bytes) % width)
            if len(uneven):
                what, item = "an item ends with a partial token", int(uneven[0])
                raise damaged(one.path, what, f"item {item - 1}", f"a multiple of {width} bytes", int(offsets[item]))
            found.append((offsets[1:] - one.header_bytes) // width + self.begins[chunk])
        return np.concatenate(found)

    def _offsets(self, chunk: Chunk) -> IntArray:
        if self._index.level is not None:
            return read_items(self._store, chunk, self._index.level).offsets
        head = memoryview(self._store.get(chunk.path, 0, chunk.header_bytes))
        return read_offsets(chunk, head, chunk.size_bytes)

    def _count(self, chunk: Chunk) -> int:
        count, rest = divmod(chunk.size_bytes - chunk.header_bytes, self._stored.itemsize)
        if count < 0 or rest or chunk.tokens not in (None, count):
            found = f"{chunk.size_bytes} bytes, {chunk.items} items, {chunk.tokens} tokens"
            raise damaged(self._index.path, f"the sizes of {chunk.path!r:.200} contradict each other", found)
        return count

    def _ids(self, chunk: int) -> FileIds:
        for number, ids in (*self._held, *self._plain.items()):
            if number == chunk:
                return ids
        one = self._index.chunks[chunk]
        make = partial(FileIds, start_bytes=one.header_bytes, num_tokens=self._count(one), stored=self._stored)
        if self._index.level is None:
            found_bytes = self._store.size(one.path)
            if found_bytes != one.size_bytes:
                expected = f"{one.size_bytes} bytes"
                raise damaged(
                    one.path, "the chunk has a different size than recorded in the index", found_bytes, expected
                )
            self._plain[chunk] = found = make(self._store, one.path, read=self._read)
            return found
        inflated = MemoryStore({one.path: bytes(read_items(self._store, one, self._index.level).data)})
        found = make(inflated, one.path)
        self._held = ((chunk, found), *self._held[: _HELD - 1])
        return found

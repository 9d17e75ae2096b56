r"""Chunks of litdata: which bytes of one are which item.

| what | content, little-endian |
|---|---|
| plain | u32 n · u32 offset of each item and of the end, from the file's first byte · items |
| `.zstd.bin` | one zstd frame of that |
| level `sample` | plain, each item a zstd frame |
| level `batch` | `LDFZ01\0\0` · u16 version 1 · u16 flags 0 · u32 n · u32 items a frame · u32 f · u32 offset of each item and of the end in all items · f × (u32 first item, u32 items, u64 place, u32 bytes, u32 unpacked bytes) · zstd frames |
| rows of JSON | plain without items · a file of Arrow's file format · u32 its bytes · `LDARW01\0` |
"""  # noqa: E501

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._limits import LEAST_UNPACKED_BYTES, MOST_UNPACKED_BYTES, UNPACKED_RATIO
from penstock.codec.compress import decompress
from penstock.errors import Corrupt, Truncated, Unsupported
from penstock.formats.tokens.litdata.index import AGAIN, Chunk, damaged, size_problem
from penstock.store.base import Store
from penstock.types import IntArray

ARROW = b"LDARW01\0"

_FRAMED = b"LDFZ01\0\0"
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("place", "<u8"), ("bytes", "<u4"), ("unpacked", "<u4")])
_MOST_BYTES = 1 << 32
"""Offsets are u32."""


@dataclass(frozen=True, slots=True)
class Items:
    """Items of one chunk.

    Attributes:
        chunk: the chunk.
        data: its bytes, decompressed if whole files or batches are compressed.
        offsets: start of each item in `data`, and the end: int64[n + 1].
        are_packed: each item is a zstd frame.
        arrow: the items are rows of this Arrow file, and not in `data`.
    """

    chunk: Chunk
    data: memoryview
    offsets: IntArray
    are_packed: bool = False
    arrow: memoryview | None = None

    def get(self, number: int) -> memoryview:
        """Return the bytes of one item; raise `Corrupt` if they are damaged."""
        start, stop = self.offsets[number : number + 2].tolist()
        found = self.data[start:stop]
        if self.are_packed:
            limit_bytes = min(MOST_UNPACKED_BYTES, max(LEAST_UNPACKED_BYTES, UNPACKED_RATIO * len(found)))
            return memoryview(decompress(found, "zstd", limit_bytes=limit_bytes, path=self.chunk.path))
        return found


def read_items(store: Store, chunk: Chunk, level: str | None) -> Items:
    """Return the items of a chunk: mapped if it is uncompressed and on this machine, else read whole.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: it contradicts the index or itself.
        Unsupported: a version that is not known.
    """
    if level == "chunk":
        limit_bytes = min(max(chunk.size_bytes, 1), _MOST_BYTES)
        packed = store.get(chunk.path)
        data = memoryview(decompress(packed, "zstd", limit_bytes=limit_bytes, path=chunk.path))
    else:
        data = store.view(chunk.path).data
    if len(data) != chunk.size_bytes:
        raise size_problem(chunk, len(data)).error()
    if level == "batch" and bytes(data[:8]) == _FRAMED:
        return _framed(chunk, data)
    end = len(data)
    arrow = None
    if bytes(data[-8:]) == ARROW:
        length = int.from_bytes(data[-12:-8], "little") if end >= 12 else 0
        end = end - 12 - length
        if end < chunk.header_bytes or not length:
            raise damaged(chunk.path, "the table after the items is damaged", f"{length} bytes")
        arrow = data[end:-12]
    offsets = read_offsets(chunk, data, end if arrow is None else None)
    return Items(chunk, data, offsets, are_packed=level == "sample", arrow=arrow)


def read_offsets(chunk: Chunk, data: memoryview, end: int | None) -> IntArray:
    """Return the start of each item in the chunk, int64[n + 1]; items end at `end`, if given."""
    if len(data) < chunk.header_bytes:
        raise Truncated(
            "the chunk ends in the middle of its offsets", path=chunk.path, found=f"{len(data)} bytes", hint=AGAIN
        )
    table = np.frombuffer(data[: chunk.header_bytes], "<u4").astype(np.int64)
    if int(table[0]) != chunk.items:
        expected = f"{chunk.items}, as recorded in the index"
        raise damaged(chunk.path, "the chunk has the wrong number of items", int(table[0]), expected, 0)
    offsets = table[1:]
    _require_rising(chunk, offsets, chunk.header_bytes, end)
    return offsets


def _require_rising(chunk: Chunk, offsets: IntArray, start: int, end: int | None) -> None:
    if int(offsets[0]) != start or bool((np.diff(offsets) < 0).any()) or (end is not None and int(offsets[-1]) != end):
        found = f"{offsets[0]} to {offsets[-1]}"
        expected = f"increasing from {start}" + ("" if end is None else f" to {end}")
        raise damaged(chunk.path, "the offsets of the items are damaged", found, expected, 4)


def _framed(chunk: Chunk, data: memoryview) -> Items:
    if len(data) < _PREFIX.size:
        raise Truncated(
            "the chunk ends in the middle of its header", path=chunk.path, found=f"{len(data)} bytes", hint=AGAIN
        )
    _, version, flags, items, _, frames = _PREFIX.unpack_from(data)
    if (version, flags) != (1, 0):
        found = f"version {version}, flags {flags}"
        raise Unsupported("unknown frame version", path=chunk.path, found=found, expected="1, 0")
    table_at = _PREFIX.size + 4 * (items + 1)
    table_end = table_at + _FRAME.itemsize * frames
    if items != chunk.items or len(data) < table_end:
        raise damaged(
            chunk.path, "the chunk has the wrong number of items", items, f"{chunk.items}, as recorded in the index", 12
        )
    offsets = np.frombuffer(data[_PREFIX.size : table_at], "<u4").astype(np.int64)
    table = np.frombuffer(data[table_at:table_end], _FRAME)
    _require_rising(chunk, offsets, 0, int(table["unpacked"].sum(dtype=np.uint64)))
    unpacked: list[bytes] = []
    at = 0
    for first, count, place, length, expected in table.tolist():
        fits = first + count <= items and int(offsets[first]) == at and int(offsets[first + count]) == at + expected
        if not fits or place < table_end or place + length > len(data):
            raise damaged(
                chunk.path, "a frame doesn't match the offsets of its items", f"items {first} to {first + count}"
            )
        one = decompress(data[place : place + length], "zstd", limit_bytes=max(1, expected), path=chunk.path)
        if len(one) != expected:
            raise damaged(chunk.path, "a frame has the wrong size", len(one), expected, place)
        unpacked.append(one)
        at += expected
    return Items(chunk, memoryview(b"".join(unpacked)), offsets)


def arrow_rows(items: Items) -> list[Any]:
    """Return the rows of a chunk of which the items are a table; raise `Corrupt` if it is damaged."""
    from penstock._optional import require

    pyarrow = require("pyarrow", extra="parquet")
    try:
        with pyarrow.ipc.open_file(pyarrow.py_buffer(items.arrow)) as file:
            table = file.read_all()
            table.validate(full=True)
            rows = table.to_pylist()
    except (pyarrow.ArrowException, ValueError, OSError, OverflowError) as error:
        raise damaged(items.chunk.path, "the table after the items is damaged", error) from error
    if len(rows) != items.chunk.items:
        raise Corrupt("the table has the wrong number of rows", path=items.chunk.path, found=len(rows), hint=AGAIN)
    return rows

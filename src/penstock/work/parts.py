"""The file of a finished task: its tokens, its document lengths, and what there is to know about it.

| bytes | content |
|---|---|
| 0 … T | tokens, little-endian, in the width of the output: `write_part` takes them from here |
| T … T + 8·D | document lengths in tokens, int64, little-endian |
| … + M | JSON: `PartMeta` |
| last 32 | `penstpt1`, D, M, xxh3-64 of lengths and JSON; u64, little-endian |

A part is published by a store's commit, so one that is visible is whole and durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash

from penstock.abc import Staged
from penstock.errors import Corrupt
from penstock.store.place import Place
from penstock.types import IntArray

SUFFIX = ".part"
_FOOTER = struct.Struct("<8sQQQ")
_MAGIC = b"penstpt1"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that gave no document.

    Attributes:
        line: its number, from 0: in its part, where `PartMeta` holds it.
        offset_bytes: where it begins in the (decompressed) file.
        reason: why.
    """

    line: int
    offset_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A text of the part and the ids that its engine gave it."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class PartMeta:
    """What a part holds.

    Attributes:
        start_bytes: first byte of its lines in the (decompressed) file.
        stop_bytes: end of the last one.
        digest: xxh3-128 of these bytes.
        last: whether no further part of its file follows; known for compressed files.
        lines: lines in all.
        documents: lines that gave a document.
        tokens: tokens of all documents, EOS included.
        max_token_id: the largest id, -1 without a token.
        num_dropped: lines that gave none; `dropped` are the first of them.
        probes: texts to compare with the reference.
    """

    start_bytes: int
    stop_bytes: int
    digest: str
    last: bool
    lines: int
    documents: int
    tokens: int
    max_token_id: int
    num_dropped: int
    dropped: tuple[BadLine, ...]
    probes: tuple[Probe, ...]


def part_name(file: int, piece: int) -> str:
    """Name of the part of one piece of one input file."""
    return f"{file:06d}-{piece:08d}{SUFFIX}"


def finish_part(staged: Staged, lengths: IntArray, meta: PartMeta) -> None:
    """Append everything after the tokens, and publish."""
    tail = np.ascontiguousarray(lengths, "<i8").tobytes()
    note = msgspec.json.encode(meta)
    staged.write(tail)
    staged.write(note)
    staged.write(_FOOTER.pack(_MAGIC, len(lengths), len(note), xxhash.xxh3_64_intdigest(tail + note)))
    staged.commit()


def read_part(part: Place, token_bytes: int) -> tuple[PartMeta, IntArray]:
    """`(meta, int64[n_docs] lengths)` of a part.

    Raises:
        Corrupt: it is damaged.
    """
    size_bytes = part.store.size(part.path)
    for found in _tail(part, size_bytes):
        note_bytes, lengths, note = found
        meta = _decode(note)
        if meta is not None and int(lengths.sum()) == meta.tokens and len(lengths) == meta.documents:
            used_bytes = meta.tokens * token_bytes + 8 * len(lengths) + note_bytes + _FOOTER.size
            if used_bytes == size_bytes:
                return meta, lengths
    raise Corrupt(
        "a part of unfinished work is damaged", path=part.path, hint="Throw the work away: restart (--restart)"
    )


def _tail(part: Place, size_bytes: int) -> Iterator[tuple[int, IntArray, bytes]]:
    if size_bytes < _FOOTER.size:
        return
    store, path = part.store, part.path
    magic, n_docs, note_bytes, check = _FOOTER.unpack(store.get(path, size_bytes - _FOOTER.size, _FOOTER.size))
    tail_bytes = 8 * n_docs + note_bytes
    if magic != _MAGIC or tail_bytes + _FOOTER.size > size_bytes:
        return
    tail = store.get(path, size_bytes - _FOOTER.size - tail_bytes, tail_bytes)
    if xxhash.xxh3_64_intdigest(tail) == check:
        yield note_bytes, np.frombuffer(tail, "<i8", n_docs).astype(np.int64), tail[8 * n_docs :]


def _decode(note: bytes) -> PartMeta | None:
    try:
        return msgspec.json.decode(note, type=PartMeta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None

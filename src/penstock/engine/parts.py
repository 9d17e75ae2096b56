"""Parts: the files of finished tasks.

| bytes | content |
|---|---|
| 0 … T | tokens, little-endian, as wide as in the output, so that `write_part` can copy them |
| T … T + 8·D | document lengths in tokens, int64, little-endian |
| … + 8·N | row numbers in the source, int64, little-endian; N is D, or 0 if they aren't needed |
| … + M | JSON: `PartMeta` |
| last 40 | `penstpt3`, D, N, M, xxh3-64 of lengths, row numbers and JSON; u64, little-endian |

A visible part is complete and durable. Its name contains the counts that the assembly needs and a digest of its bytes,
so a listing shows the finished tasks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.codec.joined_digest import JoinedDigest
from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.types import IntArray

_FOOTER = struct.Struct("<8sQQQQ")
_MAGIC = b"penstpt3"
_NAME = re.compile(r"(\d{8,})-(\d{6,})(z?)-(\d+)-(\d+)-(\d+)-([0-9a-f]{16})\.part")
_FOLDERS = 256
_MARK_BYTES = 16
MadeT = TypeVar("MadeT")
_END_BYTES = 1 << 15
"""Size of the first read at the end of a part. It often covers everything after the tokens, which saves a request."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that gave no document: its number from 0, its offset in the (decompressed) file, and the reason."""

    line: int
    offset_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A text of the part, the number of its file among the inputs, and its token ids."""

    file: int
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class PieceMeta:
    """Record of one piece of one input.

    Attributes:
        file: number of the input.
        start_bytes, stop_bytes: range of its lines in the (decompressed) file.
        digest: xxh3-128 of these bytes.
        lines: number of lines.
        documents: number of lines that gave a document.
        num_dropped: number of other lines; `dropped` are the first of them.
        gaps: uint32[k], little-endian: numbers of all dropped lines, for row maps.
        num_unmasked: conversations without a generated token; `unmasked` are the first of them.
        num_endless: conversations whose last answer has no trained end token; `endless` are the first of them.
        null_fields: fields of structs that were null and dropped, of conversations in a table.
        unknown_tokens: tokens for text that the tokenizer doesn't know.
        dropped_characters: characters that the tokenizer has no token for.
    """

    file: int
    start_bytes: int
    stop_bytes: int
    digest: str
    lines: int
    documents: int
    num_dropped: int
    dropped: tuple[BadLine, ...]
    gaps: bytes = b""
    num_unmasked: int = 0
    unmasked: tuple[BadLine, ...] = ()
    num_endless: int = 0
    endless: tuple[BadLine, ...] = ()
    null_fields: tuple[str, ...] = ()
    unknown_tokens: int = 0
    dropped_characters: int = 0


@dataclass(frozen=True, slots=True)
class DocumentRun:
    """Consecutive documents of a part: their number, largest id, and joinable (version 2) digest."""

    documents: int
    max_token_id: int
    digest: str


@dataclass(frozen=True, slots=True)
class PartMeta:
    """Record of a part.

    Attributes:
        tokens: number of tokens, EOS included.
        max_token_id: largest id; -1 without tokens.
        probes: texts to compare with the reference tokenizer.
        runs: runs of all documents, so that files are assembled without reading tokens.
        loss_mask: for conversations, one bit per token, lowest first: whether the token is generated.
    """

    pieces: tuple[PieceMeta, ...]
    documents: int
    tokens: int
    max_token_id: int
    probes: tuple[Probe, ...]
    runs: tuple[DocumentRun, ...] = ()
    loss_mask: bytes = b""

    @property
    def num_dropped(self) -> int:
        return sum(piece.num_dropped for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PartName:
    """Contents of a part's file name.

    Attributes:
        task: number of the task.
        piece: number among the task's parts; `last` if it is the last of them.
        documents, tokens, num_dropped: counts. For other data than tokens, `documents` counts rows or samples, and
            `tokens` their units, shards or bytes.
        digest: xxh3-64 of its bytes, 16 hex digits.
    """

    task: int
    piece: int
    last: bool
    documents: int
    tokens: int
    num_dropped: int
    digest: str

    @property
    def path(self) -> str:
        """Path in the directory of parts, spread over subdirectories."""
        end = "z" if self.last else ""
        counts = f"{self.documents}-{self.tokens}-{self.num_dropped}"
        return f"{self.task % _FOLDERS:02x}/{self.task:08d}-{self.piece:06d}{end}-{counts}-{self.digest}.part"


def made_of(there: Mapping[int, MadeT], number: int, work: Place) -> MadeT:
    """Return the record of a finished task from a listing; raises `PrepareError` if another run removed it."""
    if number not in there:
        what, found = "the record of finished work is incomplete", f"nothing from task {number}"
        raise PrepareError(what, path=work.path, found=found, hint="Run it again")
    return there[number]


def parse_part_name(name: str) -> PartName | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    task, piece, last, documents, tokens, num_dropped, digest = found.groups()
    return PartName(int(task), int(piece), bool(last), int(documents), int(tokens), int(num_dropped), digest)


def put_part(parts: Place, task: int, data: bytes, *, documents: int, tokens: int, num_dropped: int) -> PartName:
    """Store the only part of a task; the same part may exist."""
    name = PartName(task, 0, True, documents, tokens, num_dropped, xxhash.xxh3_64_hexdigest(data))
    put_new(parts.store, parts.child(name.path).path, data)
    return name


def get_part(parts: Place, name: PartName) -> bytes:
    part = parts.child(name.path)
    data = part.store.get(part.path)
    if xxhash.xxh3_64_hexdigest(data) != name.digest:
        raise _damaged(part)
    return data


def require_intact(parts: Place, name: PartName) -> None:
    """Raise `Corrupt` if the bytes of a local part don't match its digest; reads all of it.

    Parts in an object store are not read again.
    """
    part = parts.child(name.path)
    store = part.store
    if store.is_local and xxhash.xxh3_64_hexdigest(byte_view(store.view(part.path))) != name.digest:
        raise _damaged(part)


def put_mark(mark: Place, data: bytes) -> None:
    """Record a finished task of the second wave, with a digest."""
    put_new(mark.store, mark.path, xxhash.xxh3_64_hexdigest(data).encode() + data)


def get_mark(mark: Place) -> bytes:
    """Return what `put_mark` was given; raises `Corrupt` if the mark is damaged."""
    stored = mark.store.get(mark.path)
    data = stored[_MARK_BYTES:]
    if stored[:_MARK_BYTES] != xxhash.xxh3_64_hexdigest(data).encode():
        raise _damaged(mark)
    return data


def require_size(file: Place, size_bytes: int) -> None:
    """Raise `Corrupt` if a file of finished work is missing, or its size differs from its mark."""
    try:
        found = file.store.size(file.path)
    except (NotFound, FileNotFoundError):
        found = -1
    if found != size_bytes:
        error = _damaged(file)
        error.found = "no file" if found < 0 else f"{found} bytes"
        error.expected = f"{size_bytes} bytes"
        raise error


def encode_end(lengths: IntArray, meta: PartMeta, rows: IntArray | None = None) -> bytes:
    """Return the bytes that follow a part's tokens; `rows`: int64[n_docs] numbers of the documents in the source."""
    numbers = np.empty(0, np.int64) if rows is None else rows
    tail = np.ascontiguousarray(np.concatenate([lengths, numbers]), "<i8").tobytes()
    note = msgspec.json.encode(meta)
    digest = xxhash.xxh3_64_intdigest(tail + note)
    return tail + note + _FOOTER.pack(_MAGIC, len(lengths), len(numbers), len(note), digest)


def read_part(part: Place, token_bytes: int) -> tuple[PartMeta, IntArray]:
    """Return `(meta, int64[n_docs] lengths)` of a part; raises `Corrupt` if it is damaged."""
    return _read_part(part, token_bytes)[:2]


def read_row_numbers(part: Place, token_bytes: int) -> IntArray:
    """Return int64[n_docs]: the number of each document in its source."""
    meta, _, rows = _read_part(part, token_bytes)
    if len(rows) != meta.documents:
        raise _damaged(part)
    return rows


def _read_part(part: Place, token_bytes: int) -> tuple[PartMeta, IntArray, IntArray]:
    size_bytes = part.store.size(part.path)
    for note_bytes, lengths, rows, note in _tail(part, size_bytes):
        meta = _decode(note)
        if meta is not None and int(lengths.sum()) == meta.tokens and len(lengths) == meta.documents:
            used_bytes = meta.tokens * token_bytes + 8 * (len(lengths) + len(rows)) + note_bytes + _FOOTER.size
            if used_bytes == size_bytes:
                return meta, lengths, rows
    raise _damaged(part)


def _damaged(part: Place) -> Corrupt:
    return Corrupt("a part of unfinished work is damaged", path=part.path, hint="Discard the work: restart (--restart)")


def _tail(part: Place, size_bytes: int) -> Iterator[tuple[int, IntArray, IntArray, bytes]]:
    if size_bytes < _FOOTER.size:
        return
    store, path = part.store, part.path
    (end,) = store.get_ranges(path, [(max(0, size_bytes - _END_BYTES), size_bytes)])
    magic, n_docs, n_rows, note_bytes, check = _FOOTER.unpack(end[-_FOOTER.size :])
    tail_bytes = 8 * (n_docs + n_rows) + note_bytes
    if magic != _MAGIC or tail_bytes + _FOOTER.size > size_bytes:
        return
    if tail_bytes + _FOOTER.size > len(end):
        (end,) = store.get_ranges(path, [(size_bytes - _FOOTER.size - tail_bytes, size_bytes)])
    tail = end[len(end) - _FOOTER.size - tail_bytes : -_FOOTER.size]
    if xxhash.xxh3_64_intdigest(tail) == check:
        numbers = np.frombuffer(tail, "<i8", n_docs + n_rows).astype(np.int64)
        yield note_bytes, numbers[:n_docs], numbers[n_docs:], tail[8 * (n_docs + n_rows) :]


def _decode(note: bytes) -> PartMeta | None:
    try:
        return msgspec.json.decode(note, type=PartMeta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_RUN_TOKENS = 1 << 18
"""Number of tokens in a run of documents with its own digest. If a token file ends inside a run, part of it is read."""


@dataclass(slots=True)
class DocumentRuns:
    """Digests of runs of a part's documents; a long document is a separate run."""

    _done: list[DocumentRun] = field(default_factory=list[DocumentRun])
    _digest: JoinedDigest = field(default_factory=JoinedDigest)
    _tokens: int = 0
    _highest: int = -1

    def add(self, tokens: NDArray[np.unsignedinteger], lengths: IntArray) -> None:
        self._digest.update(tokens, lengths)
        self._tokens += len(tokens)
        self._highest = max(self._highest, int(tokens.max(initial=0)) if len(tokens) else -1)
        if self._tokens >= _RUN_TOKENS:
            self._close()

    def add_long(self, *pieces: NDArray[np.unsignedinteger]) -> None:
        """Add one document, given in pieces."""
        self._close()
        self._digest.update_document(pieces)
        self._highest = max(int(piece.max(initial=0)) for piece in pieces)
        self._close()

    def finish(self) -> tuple[DocumentRun, ...]:
        self._close()
        return tuple(self._done)

    def _close(self) -> None:
        if self._digest.num_docs:
            self._done.append(DocumentRun(self._digest.num_docs, self._highest, self._digest.text()))
        self._digest, self._tokens, self._highest = JoinedDigest(), 0, -1

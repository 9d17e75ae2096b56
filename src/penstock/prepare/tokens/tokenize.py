"""One task: pieces of inputs → a part with their tokens. This is what worker processes run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.abc import Staged
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import BadLine, DocumentRuns, PartMeta, PartName, PieceMeta, Probe, encode_end, read_part
from penstock.errors import PenstockError, PrepareError
from penstock.formats.jsonl.decompress import blocks_of, cut_stream
from penstock.formats.jsonl.scan import LineRange, line_blocks
from penstock.prepare.tokens.chat.mask import encode_spans, encode_spans_by_bytes, end_conversations
from penstock.prepare.tokens.chat.rows import NullFields
from penstock.prepare.tokens.chat.template import Spans
from penstock.prepare.tokens.documents import Texts
from penstock.prepare.tokens.engine_choice import disagreed, find_disagreement
from penstock.prepare.tokens.engines import (
    Encoded,
    EngineName,
    TokenizersEngine,
    UnencodableError,
    fault_of,
    load_engine,
    load_reference,
)
from penstock.prepare.tokens.fill_in import FillIn
from penstock.prepare.tokens.inputs import TABLES, Piece, Task, cut_parts
from penstock.prepare.tokens.reading import Reader, Selection, make_reader, table_lines
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.prepare.tokens.vocabulary import count_dropped, count_unknown, load_token_table
from penstock.store.place import Place
from penstock.store.put import aborting, commit_as
from penstock.types import Buffer, IntArray

MOST_DROPPED = 100
"""Invalid lines that are listed; all are counted."""
MOST_UNMASKED = 5
"""Conversations of a piece that are listed for each reason; all are counted."""

_PROBE_CHARS = 1000
_PROBE_BYTES = 4 * _PROBE_CHARS
_LONG_TOKENS = 1 << 20
_AT_ONCE_BYTES = 1 << 20
_ALL = 1 << 62
_COMPARED_BY_DRIVER = 16
_NO_TOKEN = "the text produces no tokens"
_NOT_GENERATED = "no token is generated"
_HOLDS = "the text contains a fill-in-the-middle token"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Parameters of all tasks of a run; each worker gets it once.

    Attributes:
        skip: skip lines without a document, instead of ending the task.
        folder: where parts are written.
        task_bytes: size of the parts of a compressed file.
        keep_map: record in parts which lines gave no document.
        excluded: number of an input → offsets of its excluded lines, rising.
    """

    spec: TokenizerSpec
    engine: EngineName
    selection: Selection
    skip: bool
    folder: Place
    task_bytes: int
    keep_map: bool = False
    excluded: Mapping[int, tuple[int, ...]] | None = None
    fill_in: FillIn | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A new part without its runs of documents, or the invalid line of `bad_piece` at which it ended."""

    name: PartName | None
    meta: PartMeta | None
    bad: BadLine | None = None
    bad_piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """New parts of a task in order, and the name of the process that made them."""

    task: int
    parts: tuple[Done, ...]
    worker: str = ""


def encode_task(encoder: Encoder, task: Task) -> Result:
    """Make the part of a task, or all missing parts of a task with several.

    Memory: a few MiB, and eight times the longest line including its ids, with what the engine needs: gigatoken the
    ids, `tokenizers` about 200 bytes per token. A compressed file needs three times `task_bytes` more.

    Raises:
        PrepareError: the input of a finished part has changed, or the engine failed.
        FormatError: the input is damaged.
    """
    if task.look:
        _require_unchanged(encoder, task)
        return Result(task.number, ())
    if not task.in_parts or task.lines is not None:
        return Result(task.number, (_encode_part(encoder, task),), _worker())
    parts: list[Done] = []
    for one in cut_parts(task, encoder.task_bytes):
        if one.part not in task.done:
            parts.append(_encode_part(encoder, one))
            if parts[-1].bad is not None:
                break
    return Result(task.number, tuple(parts), _worker())


def is_compared_by_worker(task: int, part: int) -> bool:
    """Return whether the worker that makes a part compares its texts: the driver does so for the first parts.

    So a worker with few parts needn't load the tokenizer's own library.
    """
    return task + part >= _COMPARED_BY_DRIVER


def _worker() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


def _require_unchanged(encoder: Encoder, task: Task) -> None:
    parts = cut_parts(task, encoder.task_bytes) if task.in_parts and task.lines is None else (task,)
    for name, one in zip(task.look, parts, strict=False):
        meta, _ = read_part(encoder.folder.child(name.path), encoder.spec.token_bytes)
        for piece, made in zip(one.pieces, meta.pieces, strict=True):
            hasher = xxhash.xxh3_128()
            for _, block in _blocks(encoder, one, piece):
                hasher.update(block)
            if hasher.hexdigest() != made.digest:
                raise PrepareError(
                    "the input changed after a part of it was finished",
                    path=piece.place.path,
                    offset_bytes=made.start_bytes,
                    hint="Discard the finished work: restart (--restart)",
                )


def _encode_part(encoder: Encoder, task: Task) -> Done:
    temporary = encoder.folder.child(f"{task.number % 256:02x}/{task.number:08d}-{task.part:06d}")
    with aborting(temporary.store.stage(temporary.path)) as staged:
        part = PartEncoder(encoder, task, staged)
        for piece in task.pieces:
            part.begin(piece)
            for offset_bytes, block in _blocks(encoder, task, piece, part.nulls):
                part.add(offset_bytes, block)
                if part.bad is not None:
                    return Done(None, None, part.bad, piece)
            part.end()
        name, meta = part.finish()
        if encoder.engine == "gigatoken" and is_compared_by_worker(task.number, task.part):
            difference = find_disagreement(load_reference(encoder.spec), meta.probes)
            if difference is not None:
                path = next(one.place.path for one in task.pieces if one.file == difference[0])
                raise disagreed(path, difference[1])
        commit_as(staged, encoder.folder.child(name.path).path)
    return Done(name, replace(meta, runs=(), loss_mask=b""))  # these can be read from the part


@dataclass(slots=True)
class PartEncoder:
    """Encodes blocks of lines one after another into one part, and collects what its end records."""

    encoder: Encoder
    task: Task
    staged: Staged
    bad: BadLine | None = None
    pieces: list[PieceMeta] = field(default_factory=list[PieceMeta])
    runs: list[IntArray] = field(default_factory=list[IntArray])
    masks: list[NDArray[np.bool_]] = field(default_factory=list[NDArray[np.bool_]])
    documents: DocumentRuns = field(default_factory=DocumentRuns)
    content: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    first: tuple[int, bytes] | None = None
    newest: tuple[int, bytes] | None = None
    reader: Reader = field(init=False)
    unencodable: dict[int, str] = field(default_factory=dict[int, str])
    # Of the current piece:
    piece: PieceMeta = field(init=False)
    hasher: xxhash.xxh3_128 = field(init=False)
    dropped: list[BadLine] = field(default_factory=list[BadLine])
    gaps: list[IntArray] = field(default_factory=list[IntArray])
    unmasked: list[BadLine] = field(default_factory=list[BadLine])
    num_unmasked: int = 0
    endless: list[BadLine] = field(default_factory=list[BadLine])
    num_endless: int = 0
    nulls: NullFields = field(default_factory=NullFields)

    def __post_init__(self) -> None:
        self.reader = make_reader(self.encoder.selection, stop_at_fault=not self.encoder.skip)

    def begin(self, piece: Piece) -> None:
        self.piece = PieceMeta(piece.file, -1, 0, "", 0, 0, 0, ())
        self.hasher = xxhash.xxh3_128()
        self.dropped, self.gaps, self.unmasked, self.num_unmasked = [], [], [], 0
        self.endless, self.num_endless, self.nulls = [], 0, NullFields()

    def add(self, offset_bytes: int, block: bytes) -> None:
        encoder = self.encoder
        self.hasher.update(block)
        found = self.reader.read(block)
        if excluded := (encoder.excluded or {}).get(self.piece.file):
            found = _without_excluded(found, offset_bytes, excluded)
        mask, held = None, set[int]()
        if encoder.fill_in is None:
            (ids, lengths), mask = self._encode(found.texts, found.spans)
            if mask is not None and encoder.skip:
                ids, lengths, mask = self._skip_untrained(ids, lengths, mask)
        else:
            (ids, lengths), held = encoder.fill_in.encode(lambda texts: self._encode_all(texts)[0], found.texts)
        faults = found.faults | _empty_documents(found, lengths, held, self.unencodable)
        unknown = count_unknown(encoder.spec, ids)
        dropped = count_dropped(encoder.spec, found.texts, lengths)
        piece = self.piece
        if encoder.keep_map:
            self.gaps.append(piece.lines + _without_document(found, faults))
        if faults:
            self._note_dropped(offset_bytes, found.lines, faults)
        if mask is not None:
            ids, lengths = self._end_conversations(offset_bytes, found, ids, lengths, mask)
        lengths = lengths[lengths > 0]
        if self.bad is None:
            self._append(ids, lengths, with_eos=mask is None)
        if found.texts:
            text = (piece.file, found.texts[0][:_PROBE_BYTES])
            self.first, self.newest = self.first or text, text
        self.piece = replace(
            piece,
            start_bytes=offset_bytes if piece.start_bytes < 0 else piece.start_bytes,
            stop_bytes=offset_bytes + len(block),
            lines=piece.lines + len(found.lines),
            documents=piece.documents + len(lengths),
            num_dropped=piece.num_dropped + len(faults),
            num_unmasked=self.num_unmasked,
            num_endless=self.num_endless,
            unknown_tokens=piece.unknown_tokens + unknown,
            dropped_characters=piece.dropped_characters + dropped,
        )

    def end(self) -> None:
        self.pieces.append(
            replace(
                self.piece,
                start_bytes=max(0, self.piece.start_bytes),
                digest=self.hasher.hexdigest(),
                dropped=tuple(self.dropped),
                gaps=np.concatenate(self.gaps).astype("<u4").tobytes() if self.gaps else b"",
                unmasked=tuple(self.unmasked),
                endless=tuple(self.endless),
                null_fields=tuple(sorted(self.nulls.names)),
            )
        )

    def finish(self) -> tuple[PartName, PartMeta]:
        """Append what follows the tokens; return the part's name and what it records."""
        lengths = np.concatenate(self.runs) if self.runs else np.empty(0, np.int64)
        texts = [self.first, self.newest] if self.newest != self.first else [self.first]
        probes = tuple(self._probe(*text) for text in texts if text is not None)
        runs = self.documents.finish()
        highest = max((run.max_token_id for run in runs), default=-1)
        mask = np.packbits(np.concatenate(self.masks), bitorder="little").tobytes() if self.masks else b""
        meta = PartMeta(tuple(self.pieces), len(lengths), int(lengths.sum()), highest, probes, runs, mask)
        self._write(encode_end(lengths, meta))
        task, digest = self.task, self.content.hexdigest()
        return PartName(task.number, task.part, task.last, meta.documents, meta.tokens, meta.num_dropped, digest), meta

    def _encode(self, texts: list[bytes], spans: list[Spans] | None = None) -> tuple[Encoded, NDArray[np.bool_] | None]:
        """Do `_encode_all`; a text that can't be encoded gets no ids and an entry in `unencodable`."""
        self.unencodable = {}
        try:
            return self._encode_all(texts, spans)
        except UnencodableError:
            pass
        found: list[tuple[Encoded, NDArray[np.bool_] | None]] = []
        for row, text in enumerate(texts):
            try:
                found.append(self._encode_all([text], None if spans is None else [spans[row]]))
            except UnencodableError as error:
                self.unencodable[row] = fault_of(error)
                found.append(((np.empty(0, np.uint32), np.zeros(1, np.int64)), np.empty(0, np.bool_)))
        masks = [mask for _, mask in found if mask is not None]
        encoded = np.concatenate([one[0] for one, _ in found]), np.concatenate([one[1] for one, _ in found])
        return encoded, None if spans is None else np.concatenate(masks)

    def _encode_all(
        self, texts: list[bytes], spans: list[Spans] | None = None
    ) -> tuple[Encoded, NDArray[np.bool_] | None]:
        """Return ids and lengths; for conversations also which of their tokens are generated."""
        name, spec = self.encoder.engine, self.encoder.spec
        engine = load_engine(name, spec)
        try:
            if spans is not None and isinstance(engine, TokenizersEngine):
                return encode_spans(engine, texts, spans)
            if spans is not None:
                reference = functools.partial(load_reference, spec)
                return encode_spans_by_bytes(engine, load_token_table(spec), reference, texts, spans)
            return engine.encode(texts), None
        except (PenstockError, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust isn't an Exception
            raise PrepareError(
                f"{name} failed: {error}",
                path=self.task.pieces[0].place.path,
                hint="Try another engine, with restart (--engine tokenizers --restart)",
            ) from error

    def _skip_untrained(
        self, ids: NDArray[np.uint32], lengths: IntArray, mask: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint32], IntArray, NDArray[np.bool_]]:
        """Remove conversations without a generated token; their lines are invalid."""
        generated = np.append(0, np.cumsum(mask))
        stops = np.cumsum(lengths)
        none = (lengths > 0) & (generated[stops] == generated[stops - lengths])
        self.unencodable |= dict.fromkeys(np.flatnonzero(none).tolist(), _NOT_GENERATED)
        keep = ~np.repeat(none, lengths)
        return ids[keep], np.where(none, 0, lengths), mask[keep]

    def _end_conversations(
        self, offset_bytes: int, found: Texts, ids: NDArray[np.uint32], lengths: IntArray, mask: NDArray[np.bool_]
    ) -> Encoded:
        """Append EOS tokens, keep the mask, and note conversations without trained tokens or a trained end.

        The returned lengths are those of conversations that have tokens.
        """
        spec, filled = self.encoder.spec, np.flatnonzero(lengths)
        whole = lengths[filled]
        stops = np.cumsum(whole)
        none = np.logical_or.reduceat(mask, stops - whole) == 0 if len(whole) else np.empty(0, np.bool_)
        table, rule = load_token_table(spec), self.encoder.selection.chat_eos
        ids, whole, mask, endless = end_conversations(table, spec.eos_id, rule, ids, whole, mask)
        self.masks.append(mask)
        self.num_unmasked += self._note(offset_bytes, found, filled[none], self.unmasked, _NOT_GENERATED)
        self.num_endless += self._note(offset_bytes, found, filled[endless], self.endless, "no trained end token")
        return ids, whole

    def _note(self, offset_bytes: int, found: Texts, rows: IntArray, noted: list[BadLine], reason: str) -> int:
        """Note the first of some conversations of a block, by the numbers of their texts; return how many they are."""
        places: list[int] = rows.tolist() if found.places is None else [found.places[row] for row in rows.tolist()]
        for place, start_bytes in _starts(found.lines, places[: MOST_UNMASKED - len(noted)]):
            noted.append(BadLine(self.piece.lines + place, offset_bytes + start_bytes, reason))
        return len(places)

    def _note_dropped(self, offset_bytes: int, lines: list[bytes], faults: dict[int, str]) -> None:
        for place, start_bytes in _starts(lines, sorted(faults)):
            one = BadLine(self.piece.lines + place, offset_bytes + start_bytes, faults[place])
            if len(self.dropped) < MOST_DROPPED:
                self.dropped.append(one)
            if not self.encoder.skip:
                self.bad = one
                return

    def _append(self, ids: NDArray[np.uint32], lengths: IntArray, *, with_eos: bool) -> None:
        """Append documents, each with an EOS token unless it ends in one."""
        spec = self.encoder.spec
        eos_id = spec.eos_id if with_eos else None
        if len(ids) > _LONG_TOKENS * len(lengths):
            for document in np.split(ids, np.cumsum(lengths)[:-1]):
                self._append_long(document, eos_id)
            return
        tokens = ids.astype(dtype_for(spec.token_bytes, "<"))
        if eos_id is not None and len(lengths):
            stops = np.cumsum(lengths)
            without = tokens[stops - 1] != eos_id
            tokens, lengths = np.insert(tokens, stops[without], eos_id), lengths + without
        if len(tokens):
            self._write(tokens)
            self.runs.append(lengths)
            self.documents.add(tokens, lengths)

    def _append_long(self, ids: NDArray[np.uint32], eos_id: int | None) -> None:
        """Append one document without a copy of it."""
        dtype = dtype_for(self.encoder.spec.token_bytes, "<")
        for start in range(0, len(ids), _LONG_TOKENS):
            self._write(ids[start : start + _LONG_TOKENS].astype(dtype))
        end = np.array([eos_id] if eos_id is not None and ids[-1] != eos_id else [], dtype)
        self._write(end)
        self.runs.append(np.array([len(ids) + len(end)], np.int64))
        self.documents.add_long(ids, end)

    def _write(self, data: Buffer) -> None:
        self.content.update(byte_view(data))
        self.staged.write(data)

    def _probe(self, file: int, text: bytes) -> Probe:
        start = text.decode(errors="ignore")[:_PROBE_CHARS]
        return Probe(file, start, self._encode([start.encode()])[0][0].tolist())


def _empty_documents(found: Texts, lengths: IntArray, held: set[int], why: dict[int, str]) -> dict[int, str]:
    """Return why texts give no token, by line. Texts in `held` contain a fill-in-the-middle token."""
    empty = np.flatnonzero(lengths == 0).tolist()
    places = empty if found.places is None else [found.places[row] for row in empty]
    return {place: why.get(row, _HOLDS if row in held else _NO_TOKEN) for row, place in zip(empty, places, strict=True)}


def _without_excluded(found: Texts, offset_bytes: int, excluded: tuple[int, ...]) -> Texts:
    """Return the texts of a block at `offset_bytes` without those of lines at the offsets `excluded`."""
    ends = np.cumsum([len(line) + 1 for line in found.lines], dtype=np.int64) + offset_bytes
    starts = np.append(offset_bytes, ends[:-1])
    rows = set(np.flatnonzero(np.isin(starts, excluded)).tolist())
    if not rows:
        return found
    places = range(len(found.texts)) if found.places is None else found.places
    kept = [row for row, place in enumerate(places) if place not in rows]
    faults = {place: fault for place, fault in found.faults.items() if place not in rows}
    spans = None if found.spans is None else [found.spans[row] for row in kept]
    return Texts([found.texts[row] for row in kept], [places[row] for row in kept], faults, found.lines, spans)


def _without_document(found: Texts, faults: Mapping[int, str]) -> IntArray:
    """Return int64[k], rising: the lines of a block that give no document."""
    kept = np.ones(len(found.lines), bool)
    if found.places is not None:
        kept[:] = False
        kept[found.places] = True
    kept[list(faults)] = False
    return np.flatnonzero(~kept).astype(np.int64)


def _starts(lines: list[bytes], places: list[int]) -> Iterator[tuple[int, int]]:
    offset_bytes = row = 0
    for place in places:
        offset_bytes += sum(len(line) + 1 for line in lines[row:place])
        row = place
        yield place, offset_bytes


def _blocks(encoder: Encoder, task: Task, piece: Piece, nulls: NullFields | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield `(offset, whole lines)` of a piece, about 1 MiB at a time, or all of a file that is one document."""
    place = piece.place
    if task.lines is not None:
        yield from _in_blocks(*task.lines)
    elif piece.kind in TABLES:
        yield from table_lines(place, piece.kind, piece.start_bytes, piece.stop_bytes, encoder.selection, nulls)
    elif piece.compression != "none":
        whole = piece.kind == "whole"
        for offset_bytes, data, _ in cut_stream(place, piece.compression, _ALL if whole else encoder.task_bytes):
            yield from ((offset_bytes, data),) if whole else _in_blocks(offset_bytes, data)
    elif piece.is_whole and (piece.kind == "whole" or piece.size_bytes <= _AT_ONCE_BYTES):
        if data := place.store.get(place.path):
            yield 0, data
    else:
        lines = LineRange(place.store, place.path, piece.start_bytes, piece.stop_bytes, piece.size_bytes)
        yield from line_blocks(lines)


def _in_blocks(offset_bytes: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    for block in blocks_of(data):
        yield offset_bytes, block
        offset_bytes += len(block)

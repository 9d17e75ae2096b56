"""One task: pieces of inputs → a part with their tokens. This is what worker processes run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock.abc import Staged
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import BadLine, DocumentRuns, PartMeta, PartName, PieceMeta, Probe, encode_end, read_part
from penstock.errors import PenstockError, PrepareError
from penstock.formats.jsonl.decompress import blocks_of, cut_stream
from penstock.formats.jsonl.scan import LineRange, line_blocks
from penstock.prepare.tokens.chat.mask import encode_spans, encode_spans_by_bytes, end_conversations
from penstock.prepare.tokens.chat.render import Spans
from penstock.prepare.tokens.chat.rows import NullFields
from penstock.prepare.tokens.documents import Texts
from penstock.prepare.tokens.engine_choice import disagreed, disagreement
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
from penstock.prepare.tokens.inputs import TABLES
from penstock.prepare.tokens.reading import Reader, Selection, make_reader, table_lines
from penstock.prepare.tokens.tasks import Piece, Task, cut_parts
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.prepare.tokens.vocabulary import count_dropped, count_unknown, load_token_table
from penstock.store.place import Place
from penstock.store.put import aborting, commit_as
from penstock.types import Buffer, IntArray

MOST_DROPPED = 100
"""Bad lines that are listed; all are counted."""
MOST_UNMASKED = 5
"""Conversations of a piece of each kind, such as without a trained token, that are listed; all are counted."""

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
class Job:
    """What all tasks of a run share; a worker gets it once.

    Attributes:
        spec: the tokenizer.
        engine: what encodes.
        field: which text of a line is the document; a text is the name of a field.
        skip: whether a line without a document is left out, rather than ending the task.
        folder: where parts go.
        task_bytes: size of the parts of a compressed file.
        keep_map: whether parts remember which lines gave no document.
        compared: whether the tokenizer's own library gets texts of each part too; see `is_compared_by_worker`.
        excluded: number of an input → where its lines begin that are left out, rising.
        fill_in: how some documents are rearranged.
    """

    spec: TokenizerSpec
    engine: EngineName
    field: Selection | str
    skip: bool
    folder: Place
    task_bytes: int
    keep_map: bool = False
    compared: bool = False
    excluded: Mapping[int, tuple[int, ...]] | None = None
    fill_in: FillIn | None = None

    @property
    def selection(self) -> Selection:
        """`field`, as what is selected."""
        return Selection((self.field,)) if isinstance(self.field, str) else self.field


@dataclass(frozen=True, slots=True)
class Done:
    """A part that was made, or the bad line at which that ended.

    Attributes:
        name: of the part; None where a bad line ended it.
        meta: what the part holds, without its runs of documents.
        bad: that line, in `bad_piece`.
        bad_piece: see there.
    """

    name: PartName | None
    meta: PartMeta | None
    bad: BadLine | None = None
    bad_piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a task.

    Attributes:
        task: its number.
        parts: that were made, in order.
        worker: names the process that made them.
    """

    task: int
    parts: tuple[Done, ...]
    worker: str = ""


def encode_task(job: Job, task: Task) -> Result:
    """Make the part of a task, or all parts of one that has several; one that is there by now stays.

    Memory: a few MiB, and eight times the longest line, its ids counted, with what the engine itself takes: gigatoken
    the ids, `tokenizers` about 200 bytes a token. A compressed file takes three times `task_bytes` besides.

    Raises:
        PrepareError: the input of a finished part has changed, or the engine failed.
        FormatError: the input is damaged.
        OSError: the system refused.
    """
    if task.look:
        _require_unchanged(job, task)
        return Result(task.number, ())
    if not task.in_parts or task.lines is not None:
        return Result(task.number, (_encode_part(job, task),), _worker())
    found: list[Done] = []
    for one in cut_parts(task, job.task_bytes):
        if one.part not in task.done:
            found.append(_encode_part(job, one))
            if found[-1].bad is not None:
                break
    return Result(task.number, tuple(found), _worker())


def is_compared_by_worker(task: int, part: int) -> bool:
    """Whether who makes a part compares its texts by itself: whoever gave the task does so with the first ones.

    A worker that has a few parts to make need not load the tokenizer's own library.
    """
    return task + part >= _COMPARED_BY_DRIVER


def _require_agreement(job: Job, task: Task, probes: Sequence[Probe]) -> None:
    difference = disagreement(load_reference(job.spec), probes)
    if difference is not None:
        raise disagreed(next(one.place.path for one in task.pieces if one.file == probes[0].file), difference)


def _worker() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


def _require_unchanged(job: Job, task: Task) -> None:
    """Raise `PrepareError` where what a finished part was made from is no longer what it was."""
    parts = cut_parts(task, job.task_bytes) if task.in_parts and task.lines is None else (task,)
    for name, one in zip(task.look, parts, strict=False):
        meta, _ = read_part(job.folder.child(name.path), job.spec.token_bytes)
        for piece, made in zip(one.pieces, meta.pieces, strict=True):
            hasher = xxhash.xxh3_128()
            for _, block in _blocks(job, one, piece):
                hasher.update(block)
            if hasher.hexdigest() != made.digest:
                raise PrepareError(
                    "the input changed after a part of it was finished",
                    path=piece.place.path,
                    offset_bytes=made.start_bytes,
                    hint="Discard the finished work: restart (--restart)",
                )


def _encode_part(job: Job, task: Task) -> Done:
    temporary = job.folder.child(f"{task.number % 256:02x}/{task.number:08d}-{task.part:06d}")
    with aborting(temporary.store.stage(temporary.path)) as staged:
        tally = _Tally(job, task, staged)
        for piece in task.pieces:
            tally.begin(piece)
            for offset_bytes, block in _blocks(job, task, piece, tally.nulls):
                tally.add(offset_bytes, block)
                if tally.bad is not None:
                    return Done(None, None, tally.bad, piece)
            tally.end()
        name, meta = tally.finish()
        if job.compared and is_compared_by_worker(task.number, task.part):
            _require_agreement(job, task, meta.probes)
        commit_as(staged, job.folder.child(name.path).path)
    # They are in the part, for who makes files of it.
    return Done(name, replace(meta, runs=(), loss_mask=b""))


@dataclass(slots=True)
class _Tally:
    """Encodes blocks of lines one after another, and keeps the books."""

    job: Job
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
    # Of the piece at hand:
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
        self.reader = make_reader(self.job.field, stop_at_fault=not self.job.skip)

    def begin(self, piece: Piece) -> None:
        """Start a piece."""
        self.piece = PieceMeta(piece.file, -1, 0, "", 0, 0, 0, ())
        self.hasher = xxhash.xxh3_128()
        self.dropped, self.gaps, self.unmasked, self.num_unmasked = [], [], [], 0
        self.endless, self.num_endless, self.nulls = [], 0, NullFields()

    def add(self, offset_bytes: int, block: bytes) -> None:
        """Encode a run of whole lines of the piece, and append its tokens."""
        self.hasher.update(block)
        found = self.reader.read(block)
        if gone := (self.job.excluded or {}).get(self.piece.file):
            found = _without(found, offset_bytes, gone)
        fill_in, mask, held = self.job.fill_in, None, set[int]()
        if fill_in is None:
            (ids, lengths), mask = self._encode(found.texts, found.spans)
            if mask is not None and self.job.skip:
                ids, lengths, mask = self._without_untrained(ids, lengths, mask)
        else:
            (ids, lengths), held = fill_in.encode(lambda texts: self._encode_all(texts)[0], found.texts)
        faults = found.faults | _empty_documents(found, lengths, held, self.unencodable)
        unknown = count_unknown(self.job.spec, (ids, lengths))
        dropped = count_dropped(self.job.spec, found.texts, lengths)
        piece = self.piece
        if self.job.keep_map:
            self.gaps.append(piece.lines + _without_document(found, faults))
        if faults:
            self._drop(offset_bytes, found.lines, faults)
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

    def _without_untrained(
        self, ids: NDArray[np.uint32], lengths: IntArray, mask: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint32], IntArray, NDArray[np.bool_]]:
        """Leave out conversations of which no token is generated, as faulty lines."""
        generated = np.append(0, np.cumsum(mask))
        stops = np.cumsum(lengths)
        none = (lengths > 0) & (generated[stops] == generated[stops - lengths])
        self.unencodable |= dict.fromkeys(np.flatnonzero(none).tolist(), _NOT_GENERATED)
        keep = ~np.repeat(none, lengths)
        return ids[keep], np.where(none, 0, lengths), mask[keep]

    def end(self) -> None:
        """End the piece."""
        piece = self.piece
        start_bytes = max(0, piece.start_bytes)
        digest, dropped, unmasked = self.hasher.hexdigest(), tuple(self.dropped), tuple(self.unmasked)
        gaps = np.concatenate(self.gaps).astype("<u4").tobytes() if self.gaps else b""
        notes: dict[str, Any] = {"digest": digest, "dropped": dropped, "gaps": gaps, "unmasked": unmasked}
        notes["endless"] = tuple(self.endless)
        notes["null_fields"] = tuple(sorted(self.nulls.names))
        self.pieces.append(replace(piece, start_bytes=start_bytes, **notes))

    def finish(self) -> tuple[PartName, PartMeta]:
        """Append what follows the tokens; the part's name, and what it holds."""
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
        """The same; a text that can't be encoded has no ids, and `unencodable` says why."""
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
        """Ids and lengths; of conversations also which of their tokens are generated."""
        engine = load_engine(self.job.engine, self.job.spec)
        try:
            if spans is not None and isinstance(engine, TokenizersEngine):
                return encode_spans(engine, texts, spans)
            if spans is not None:
                reference = functools.partial(load_reference, self.job.spec)
                return encode_spans_by_bytes(engine, load_token_table(self.job.spec), reference, texts, spans)
            return engine.encode(texts), None
        except (PenstockError, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            raise PrepareError(
                f"{self.job.engine} failed: {error}",
                path=self.task.pieces[0].place.path,
                hint="Try another engine, with restart (--engine tokenizers --restart)",
            ) from error

    def _end_conversations(
        self, offset_bytes: int, found: Texts, ids: NDArray[np.uint32], lengths: IntArray, mask: NDArray[np.bool_]
    ) -> Encoded:
        """Append EOS tokens, keep the mask, and note conversations without trained tokens, or without an end of such.

        Lengths are those of the conversations that have tokens.
        """
        spec, filled = self.job.spec, np.flatnonzero(lengths)
        whole = lengths[filled]
        stops = np.cumsum(whole)
        none = np.logical_or.reduceat(mask, stops - whole) == 0 if len(whole) else np.empty(0, np.bool_)
        vocabulary, rule = load_token_table(spec), self.job.selection.chat_eos
        ids, whole, mask, endless = end_conversations(vocabulary, spec.eos_id, rule, ids, whole, mask)
        self.masks.append(mask)
        self.num_unmasked += self._note(offset_bytes, found, filled[none], self.unmasked, "no token is generated")
        self.num_endless += self._note(offset_bytes, found, filled[endless], self.endless, "no trained end token")
        return ids, whole

    def _note(self, offset_bytes: int, found: Texts, rows: IntArray, noted: list[BadLine], reason: str) -> int:
        """Note the first of some conversations of a block, by their texts' numbers; returns how many they are."""
        places: list[int] = rows.tolist() if found.places is None else [found.places[row] for row in rows.tolist()]
        for place, start_bytes in _starts(found.lines, places[: MOST_UNMASKED - len(noted)]):
            noted.append(BadLine(self.piece.lines + place, offset_bytes + start_bytes, reason))
        return len(places)

    def _append(self, ids: NDArray[np.uint32], lengths: IntArray, *, with_eos: bool) -> None:
        spec = self.job.spec
        if len(ids) > _LONG_TOKENS * len(lengths):
            for document in np.split(ids, np.cumsum(lengths)[:-1]):
                self._append_long(document, with_eos=with_eos)
            return
        tokens = ids.astype(dtype_for(spec.token_bytes, "<"))
        if with_eos and spec.eos_id is not None:
            tokens, lengths = _with_eos(tokens, lengths, spec.eos_id)
        if len(tokens):
            self._write(tokens)
            self.runs.append(lengths)
            self.documents.add(tokens, lengths)

    def _append_long(self, ids: NDArray[np.uint32], *, with_eos: bool) -> None:
        """Append one document without a copy of it."""
        spec = self.job.spec
        dtype = dtype_for(spec.token_bytes, "<")
        for start in range(0, len(ids), _LONG_TOKENS):
            self._write(ids[start : start + _LONG_TOKENS].astype(dtype))
        appends = with_eos and spec.eos_id is not None and ids[-1] != spec.eos_id
        end = np.array([spec.eos_id] if appends else [], dtype)
        self._write(end)
        self.runs.append(np.array([len(ids) + len(end)], np.int64))
        self.documents.add_long(ids, end)

    def _write(self, data: Buffer) -> None:
        self.content.update(byte_view(data))
        self.staged.write(data)

    def _drop(self, offset_bytes: int, lines: list[bytes], faults: dict[int, str]) -> None:
        """Book the bad lines of a block that begins at `offset_bytes`."""
        for place, start_bytes in _starts(lines, sorted(faults)):
            one = BadLine(self.piece.lines + place, offset_bytes + start_bytes, faults[place])
            if len(self.dropped) < MOST_DROPPED:
                self.dropped.append(one)
            if not self.job.skip:
                self.bad = one
                return

    def _probe(self, file: int, text: bytes) -> Probe:
        start = text.decode(errors="ignore")[:_PROBE_CHARS]
        return Probe(file, start, self._encode([start.encode()])[0][0].tolist())


def _with_eos(
    tokens: NDArray[np.unsignedinteger], lengths: IntArray, eos_id: int
) -> tuple[NDArray[np.unsignedinteger], IntArray]:
    """Documents that end in the EOS token: one is added where the last token is another."""
    if not len(lengths):
        return tokens, lengths
    stops = np.cumsum(lengths)
    without = tokens[stops - 1] != eos_id
    return np.insert(tokens, stops[without], eos_id), lengths + without


def _empty_documents(found: Texts, lengths: IntArray, held: set[int], why: dict[int, str]) -> dict[int, str]:
    """Why texts give no token, by line: those of `held` hold a token of filling in the middle."""
    empty = np.flatnonzero(lengths == 0).tolist()
    places = empty if found.places is None else [found.places[row] for row in empty]
    return {place: why.get(row, _HOLDS if row in held else _NO_TOKEN) for row, place in zip(empty, places, strict=True)}


def _without(found: Texts, offset_bytes: int, gone: tuple[int, ...]) -> Texts:
    """The texts of a block that begins at `offset_bytes`, but for those of the lines that begin where `gone` says."""
    ends = np.cumsum([len(line) + 1 for line in found.lines], dtype=np.int64) + offset_bytes
    starts = np.append(offset_bytes, ends[:-1])
    rows = set(np.flatnonzero(np.isin(starts, gone)).tolist())
    if not rows:
        return found
    places = range(len(found.texts)) if found.places is None else found.places
    kept = [row for row, place in enumerate(places) if place not in rows]
    faults = {place: fault for place, fault in found.faults.items() if place not in rows}
    spans = None if found.spans is None else [found.spans[row] for row in kept]
    return Texts([found.texts[row] for row in kept], [places[row] for row in kept], faults, found.lines, spans)


def _without_document(found: Texts, faults: Mapping[int, str]) -> IntArray:
    """int64[k], rising: the lines of a block that give no document."""
    kept = np.ones(len(found.lines), bool)
    if found.places is not None:
        kept[:] = False
        kept[found.places] = True
    kept[list(faults)] = False
    return np.flatnonzero(~kept).astype(np.int64)


def _starts(lines: list[bytes], places: list[int]) -> Iterator[tuple[int, int]]:
    """`(place, offset in the block)` of some lines."""
    offset_bytes = row = 0
    for place in places:
        offset_bytes += sum(len(line) + 1 for line in lines[row:place])
        row = place
        yield place, offset_bytes


def _blocks(job: Job, task: Task, piece: Piece, nulls: NullFields | None = None) -> Iterator[tuple[int, bytes]]:
    """`(offset, whole lines)` of a piece, about 1 MiB at a time; all of a file that is one document."""
    place = piece.place
    if task.lines is not None:
        yield from _in_blocks(task.lines.offset_bytes, task.lines.data)
    elif piece.kind in TABLES:
        yield from table_lines(place, piece.kind, piece.start_bytes, piece.stop_bytes, job.selection, nulls)
    elif piece.compression != "none":
        whole = piece.kind == "whole"
        for offset_bytes, data, _ in cut_stream(place, piece.compression, _ALL if whole else job.task_bytes):
            yield from ((offset_bytes, data),) if whole else _in_blocks(offset_bytes, data)
    elif piece.is_whole and (piece.kind == "whole" or piece.size_bytes <= _AT_ONCE_BYTES):
        if data := place.store.get(place.path):
            yield 0, data
    else:
        yield from line_blocks(
            LineRange(place.store, place.path, piece.start_bytes, piece.stop_bytes, piece.size_bytes)
        )


def _in_blocks(offset_bytes: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    for block in blocks_of(data):
        yield offset_bytes, block
        offset_bytes += len(block)

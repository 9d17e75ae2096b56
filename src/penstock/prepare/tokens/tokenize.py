"""One task: lines of one piece of one input → a part with their tokens. This is what worker processes run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.abc import Staged
from penstock.codec.tokens import dtype_for
from penstock.errors import PenstockError, PrepareError
from penstock.formats.jsonl.scan import LineRange, line_blocks
from penstock.prepare.tokens.decompress import blocks_of
from penstock.prepare.tokens.documents import Texts
from penstock.prepare.tokens.engines import Encoded, EngineName, load_engine
from penstock.prepare.tokens.inputs import Kind
from penstock.prepare.tokens.parquet import row_lines
from penstock.prepare.tokens.select import Reader, Selection, make_reader
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.store.place import Place
from penstock.store.put import aborting
from penstock.types import IntArray
from penstock.work.parts import BadLine, PartMeta, Probe, finish_part, part_name, read_part

MOST_DROPPED = 100
"""Bad lines that are listed; all are counted."""

_PROBE_CHARS = 1000
_PROBE_BYTES = 4 * _PROBE_CHARS
_LONG_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a run share; a worker gets it once.

    Attributes:
        spec: the tokenizer.
        engine: what encodes.
        field: which text of a line is the document; a text is the name of a field.
        skip: whether a line without a document is left out, rather than ending the task.
        folder: where parts go.
    """

    spec: TokenizerSpec
    engine: EngineName
    field: Selection | str
    skip: bool
    folder: Place


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of an input: bytes of a plain file, or whole lines that were decompressed.

    Attributes:
        file: number of the input.
        piece: number of the piece in it.
        place: the input.
        start_bytes: start of the range; lines that begin in it belong to the task.
        stop_bytes: end of the range.
        size_bytes: size of the (decompressed) file as far as it is known.
        data: the lines, for a compressed file.
        last: whether this is the file's last piece.
        trusted: whether a finished part needs no look at its input.
        kind: how the file is read; of a Parquet file `piece` is the row group.
    """

    file: int
    piece: int
    place: Place
    start_bytes: int
    stop_bytes: int
    size_bytes: int
    data: bytes | None = None
    last: bool = False
    trusted: bool = True
    kind: Kind = "lines"

    @property
    def described(self) -> str:
        """What an error calls it."""
        if self.kind == "parquet":
            return f"{self.place.shown}, row group {self.piece}"
        what = "bytes" if self.data is None else "decompressed bytes"
        return f"{self.place.shown}, {what} {self.start_bytes} to {self.stop_bytes}"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a task.

    Attributes:
        file: number of the input.
        part: where its tokens are.
        meta: what the part holds; None where a bad line ended the task.
        bad: that line.
        reused: whether an earlier run had finished it.
    """

    file: int
    part: Place
    meta: PartMeta | None
    bad: BadLine | None = None
    reused: bool = False


def encode_task(job: Job, task: Task) -> Done:
    """Make the part of a task, unless it is there.

    Memory: a few MiB, and eight times the longest line, its ids counted, with what the engine itself takes: gigatoken
    the ids, `tokenizers` about 200 bytes a token.

    Raises:
        PrepareError: the input of a finished part has changed, or the engine failed.
        FormatError: the input is damaged.
        OSError: the system refused.
    """
    part = job.folder.child(part_name(task.file, task.piece))
    if part.exists():
        meta, _ = read_part(part, job.spec.token_bytes)
        if not task.trusted and _input_digest(job, task, meta) != meta.digest:
            raise PrepareError(
                "the input has changed since a part of it was finished",
                path=task.place.path,
                offset_bytes=meta.start_bytes,
                hint="Throw the finished work away: restart (--restart)",
            )
        return Done(task.file, part, meta, reused=True)
    with aborting(part.store.stage(part.path)) as staged:
        tally = _Tally(job, task)
        for offset_bytes, block in _blocks(job, task):
            tally.add(offset_bytes, block, staged)
            if tally.bad is not None:
                return Done(task.file, part, None, tally.bad)
        meta = tally.meta()
        finish_part(staged, tally.lengths(), meta)
    return Done(task.file, part, meta)


@dataclass(slots=True)
class _Tally:
    """Encodes blocks of lines one after another, and keeps the books."""

    job: Job
    task: Task
    bad: BadLine | None = None
    start_bytes: int = -1
    stop_bytes: int = -1
    hasher: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)
    lines: int = 0
    runs: list[IntArray] = field(default_factory=list[IntArray])
    max_token_id: int = -1
    num_dropped: int = 0
    dropped: list[BadLine] = field(default_factory=list[BadLine])
    probes: list[bytes] = field(default_factory=list[bytes])
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = make_reader(self.job.field)

    def add(self, offset_bytes: int, block: bytes, staged: Staged) -> None:
        """Encode a run of whole lines, and append its tokens."""
        if self.start_bytes < 0:
            self.start_bytes = offset_bytes
        self.stop_bytes = offset_bytes + len(block)
        self.hasher.update(block)
        found = self.reader.read(block)
        ids, lengths = self._encode(found.texts)
        faults = found.faults | _empty_documents(found, lengths)
        if faults:
            self._drop(offset_bytes, found.lines, faults)
            lengths = lengths[lengths > 0]
        if self.bad is None:
            self._append(ids, lengths, staged)
        if found.texts:
            self.probes = [*self.probes[:1], found.texts[0][:_PROBE_BYTES]]
        self.lines += len(found.lines)

    def lengths(self) -> IntArray:
        """int64[n_docs]: lengths of all documents in tokens."""
        return np.concatenate(self.runs) if self.runs else np.empty(0, np.int64)

    def meta(self) -> PartMeta:
        """What the part holds."""
        lengths = self.lengths()
        return PartMeta(
            start_bytes=max(0, self.start_bytes),
            stop_bytes=max(0, self.stop_bytes),
            digest=self.hasher.hexdigest(),
            last=self.task.last,
            lines=self.lines,
            documents=len(lengths),
            tokens=int(lengths.sum()),
            max_token_id=self.max_token_id,
            num_dropped=self.num_dropped,
            dropped=tuple(self.dropped),
            probes=tuple(self._probe(text) for text in self.probes),
        )

    def _encode(self, texts: list[bytes]) -> Encoded:
        try:
            return load_engine(self.job.engine, self.job.spec).encode(texts)
        except (PenstockError, KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            raise PrepareError(
                f"{self.job.engine} failed: {error}",
                path=self.task.place.path,
                hint="Try another engine, with restart (--engine tokenizers --restart)",
            ) from error

    def _append(self, ids: NDArray[np.uint32], lengths: IntArray, staged: Staged) -> None:
        spec = self.job.spec
        if len(ids) > _LONG_TOKENS * len(lengths):
            for document in np.split(ids, np.cumsum(lengths)[:-1]):
                self._append_long(document, staged)
            return
        tokens, lengths = _with_eos(ids.astype(dtype_for(spec.token_bytes, "<")), lengths, spec.eos_id)
        if len(tokens):
            staged.write(tokens)
            self.runs.append(lengths)
            self.max_token_id = max(self.max_token_id, int(tokens.max()))

    def _append_long(self, ids: NDArray[np.uint32], staged: Staged) -> None:
        """Append one document without a copy of it."""
        spec = self.job.spec
        dtype = dtype_for(spec.token_bytes, "<")
        for start in range(0, len(ids), _LONG_TOKENS):
            staged.write(ids[start : start + _LONG_TOKENS].astype(dtype))
        has_eos = ids[-1] == spec.eos_id
        if not has_eos:
            staged.write(np.array([spec.eos_id], dtype))
        self.runs.append(np.array([len(ids) + (not has_eos)], np.int64))
        self.max_token_id = max(self.max_token_id, int(ids.max()), spec.eos_id)

    def _drop(self, offset_bytes: int, lines: list[bytes], faults: dict[int, str]) -> None:
        """Book the bad lines of a block that begins at `offset_bytes`."""
        for place, start_bytes in _starts(lines, sorted(faults)):
            one = BadLine(self.lines + place, offset_bytes + start_bytes, faults[place])
            self.num_dropped += 1
            if len(self.dropped) < MOST_DROPPED:
                self.dropped.append(one)
            if not self.job.skip:
                self.bad = one
                return

    def _probe(self, text: bytes) -> Probe:
        start = text.decode(errors="ignore")[:_PROBE_CHARS]
        return Probe(start, self._encode([start.encode()])[0].tolist())


def _with_eos(
    tokens: NDArray[np.unsignedinteger], lengths: IntArray, eos_id: int
) -> tuple[NDArray[np.unsignedinteger], IntArray]:
    """Documents that end in the EOS token: one is added where the last token is another."""
    if not len(lengths):
        return tokens, lengths
    stops = np.cumsum(lengths)
    without = tokens[stops - 1] != eos_id
    return np.insert(tokens, stops[without], eos_id), lengths + without


def _empty_documents(found: Texts, lengths: IntArray) -> dict[int, str]:
    empty = np.flatnonzero(lengths == 0).tolist()
    places = empty if found.places is None else [found.places[row] for row in empty]
    return dict.fromkeys(places, "the text gives no token")


def _starts(lines: list[bytes], places: list[int]) -> Iterator[tuple[int, int]]:
    """`(place, offset in the block)` of some lines."""
    offset_bytes = row = 0
    for place in places:
        offset_bytes += sum(len(line) + 1 for line in lines[row:place])
        row = place
        yield place, offset_bytes


def _blocks(job: Job, task: Task) -> Iterator[tuple[int, bytes]]:
    """`(offset, whole lines)` of a task, about 1 MiB at a time; all of a file that is one document."""
    if task.kind == "parquet":
        selection = Selection((job.field,)) if isinstance(job.field, str) else job.field
        yield from row_lines(task.place, task.piece, task.start_bytes, selection)
        return
    if task.kind == "whole":
        data = task.place.store.get(task.place.path) if task.data is None else task.data
        if data:
            yield 0, data
        return
    if task.data is None:
        work = LineRange(task.place.store, task.place.path, task.start_bytes, task.stop_bytes, task.size_bytes)
        yield from line_blocks(work)
        return
    offset_bytes = task.start_bytes
    for block in blocks_of(task.data):
        yield offset_bytes, block
        offset_bytes += len(block)


def _input_digest(job: Job, task: Task, meta: PartMeta) -> str:
    """The digest of what a finished part was made from, as it is now."""
    if task.kind == "parquet":
        rows = xxhash.xxh3_128()
        for _, block in _blocks(job, task):
            rows.update(block)
        return rows.hexdigest()
    if task.data is not None:
        return xxhash.xxh3_128_hexdigest(task.data)
    hasher = xxhash.xxh3_128()
    source = task.place
    for start in range(meta.start_bytes, meta.stop_bytes, 1 << 20):
        hasher.update(source.store.get(source.path, start, min(1 << 20, meta.stop_bytes - start)))
    return hasher.hexdigest()

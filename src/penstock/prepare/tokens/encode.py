"""One pass over the tasks of a run: missing parts are encoded, existing parts are reused, and all are counted.

The counts become the report of `pack`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._secrets import redacted_repr
from penstock.abc import Executor
from penstock.engine.parts import BadLine, PartMeta, PartName, read_part
from penstock.engine.plan import Plan
from penstock.engine.work import Work, is_complete
from penstock.errors import PrepareError
from penstock.executors import HERE
from penstock.prepare.tokens.engine_choice import disagreed, find_disagreement
from penstock.prepare.tokens.engines import EngineName, Reference
from penstock.prepare.tokens.inputs import TABLES, InputFile, Task, Tasks, cut_parts, text_bytes
from penstock.prepare.tokens.request import Material
from penstock.prepare.tokens.tokenize import MOST_DROPPED, Done, Encoder, Result, encode_task, is_compared_by_worker
from penstock.types import Manifest


@dataclass(frozen=True, slots=True)
class Dropped:
    """Line that was skipped.

    Attributes:
        file: relative path of the input.
        line: number of the line, from 1.
        reason: why it was skipped.

    Examples:
        >>> import penstock as ps
        >>> with open("docs.jsonl", "a") as file:
        ...     print("not JSON", file=file)
        >>> options = {"tokenizer": "tokenizer.json", "eos": "<|endoftext|>", "executor": "inline"}
        >>> report = ps.pack("docs.jsonl", "docs.pbin", on_error="skip", **options)
        >>> [(dropped.file, dropped.line) for dropped in report.dropped]
        [('docs.jsonl', 7)]
    """

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackProgress:
    """Progress of `pack`.

    Attributes:
        documents: number of documents so far.
        tokens: number of tokens so far.
        input_bytes: input bytes read so far; an estimate for compressed inputs.
        total_bytes: bytes of the inputs, or of this part's share of them.

    Examples:
        >>> import penstock as ps
        >>> def show(progress):
        ...     print(f"{100 * progress.input_bytes / progress.total_bytes:.0f}%, {progress.documents} documents")
        >>> options = {"tokenizer": "tokenizer.json", "eos": "<|endoftext|>", "executor": "inline"}
        >>> report = ps.pack("docs.jsonl", "docs.pbin", progress=show, **options)
        100%, 6 documents
    """

    documents: int
    tokens: int
    input_bytes: int
    total_bytes: int


@redacted_repr
@dataclass(frozen=True, slots=True)
class PackReport:
    """Result of `pack`.

    Attributes:
        output: path of the dataset.
        documents: number of documents in it.
        tokens: number of tokens in it, including EOS tokens; None if it was already complete and its format doesn't
            record the number.
        input_files: number of files read.
        input_bytes: their size, or the size of this part's share of them.
        num_dropped: number of lines skipped; `dropped` contains the first 100.
        engine: engine that encoded the text; `engine_note` is the reason why it wasn't gigatoken.
        tasks: number of tasks; `reused_tasks` of them had been finished by an earlier run.
        seconds: stage → seconds.
        manifest: content of the side file; None if nothing was committed.
        part: `(i, n)` if this was part i of a distributed job; counts are then those of the part.
        missing: parts that are missing, if the output couldn't be committed for that reason.
        excluded: lines skipped because of the inputs' exclude lists.
        num_unmasked: conversations whose loss mask is 0 everywhere; `unmasked` contains the first 5.
        num_endless: conversations whose last answer doesn't end with a trained token, so that a model doesn't learn to
            stop; `endless` contains the first 5.
        null_fields: nested fields of conversations, such as `messages[].tool_calls[].id`, that were null in some table
            rows and dropped there.
        unknown_tokens: number of tokens for text that the tokenizer doesn't know: all if the output is finished, else
            those encoded by this run.
        dropped_characters: number of characters for which the tokenizer has no token; counted in the same way.
        eos: token that ends documents; None if none was appended.
        was_complete: an interrupted earlier run had already finished the output.

    Examples:
        >>> import penstock as ps
        >>> report = ps.pack(
        ...     "docs.jsonl", "docs.pbin", tokenizer="tokenizer.json", eos="<|endoftext|>", executor="inline"
        ... )
        >>> report.documents, report.num_dropped, report.was_complete
        (6, 0, False)
        >>> report.manifest.num_samples
        6
    """

    output: str
    documents: int
    tokens: int | None
    input_files: int
    input_bytes: int
    num_dropped: int
    dropped: tuple[Dropped, ...]
    engine: str
    engine_note: str | None
    tasks: int
    reused_tasks: int
    seconds: Mapping[str, float]
    manifest: Manifest | None = None
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False
    excluded: int = 0
    num_unmasked: int = 0
    unmasked: tuple[Dropped, ...] = ()
    num_endless: int = 0
    endless: tuple[Dropped, ...] = ()
    null_fields: tuple[str, ...] = ()
    unknown_tokens: int = 0
    dropped_characters: int = 0
    eos: str | None = None


@dataclass(slots=True)
class Counts:
    """Contents of the parts so far; each field except the private ones is one of `PackReport`.

    Those of conversations are known at the commit. Unknown tokens and dropped characters are, until the commit, those
    of parts that this run encoded.
    """

    documents: int = 0
    tokens: int = 0
    tasks: int = 0
    reused_tasks: int = 0
    num_dropped: int = 0
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    num_unmasked: int = 0
    unmasked: list[Dropped] = field(default_factory=list[Dropped])
    num_endless: int = 0
    endless: list[Dropped] = field(default_factory=list[Dropped])
    null_fields: set[str] = field(default_factory=set[str])
    unknown_tokens: int = 0
    dropped_characters: int = 0

    def reported(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: tuple(found[name]) for name in ("dropped", "unmasked", "endless")}
        return found | lists | {"null_fields": tuple(sorted(self.null_fields))}


@dataclass
class Encoding:
    material: Material
    engine: EngineName
    plan: Plan
    work: Work
    counts: Counts = field(default_factory=Counts)
    _compared: set[str] = field(default_factory=set[str])
    """Workers of which this process has compared the texts of a part."""
    _done_bytes: int = 0
    _of_file: list[PartName] = field(default_factory=list[PartName])
    _file: int = -1
    _known_lines: dict[PartName, int] = field(default_factory=dict[PartName, int])

    def __post_init__(self) -> None:
        self.options, self.skip = self.material.request.options, self.material.request.skip
        self.tasks = Tasks(self.material.inputs, self.plan.task_bytes)
        sizes = (one.size_bytes for one in self.material.inputs)
        if self.options.part is not None:
            sizes = (one.size_bytes for one in self.tasks if self.options.takes(one.number))
        self.total_bytes = sum(sizes)

    @property
    def reference(self) -> Reference | None:
        """The engine with which parts are compared; None if it encoded them itself."""
        return self.material.reference if self.engine == "gigatoken" else None

    def meta(self, part: PartName, folder: Any = None) -> PartMeta:
        return read_part((folder or self.work.parts).child(part.path), self.material.spec.token_bytes)[0]

    def compare(self, meta: PartMeta) -> None:
        found = None if self.reference is None else find_disagreement(self.reference, meta.probes)
        if found is not None:
            raise disagreed(self.material.inputs[found[0]].path, found[1])

    def encode_fn(self) -> Callable[[Task], Result]:
        """Return the picklable function by which workers encode a task."""
        material = self.material
        excluded = {file: one.excluded for file, one in enumerate(material.inputs) if one.excluded}
        encoder = Encoder(
            material.spec,
            self.engine,
            material.selection,
            self.skip,
            self.work.parts,
            self.plan.task_bytes,
            material.keeps_rows,
            excluded or None,
            material.fill_in,
        )
        return functools.partial(encode_task, encoder)

    def run(self, pool: Executor) -> Iterator[tuple[PartName, bool]]:
        """Yield the parts of the chosen tasks in order, once they exist, and whether they are new.

        Raises:
            PrepareError: a line is invalid and must not be skipped, or the reference disagrees.
        """
        listed = self.work.listed()
        complete = {task: parts for task, parts in listed.items() if is_complete(parts)}
        results = pool.map(self.encode_fn(), self._missing(listed, complete))
        held: list[Result] = []
        all_before = True
        for task in self.tasks:
            if not self.options.takes(task.number):
                all_before = False
                continue
            old, count, is_over = listed.get(task.number, []), 0, False
            sent = task.number not in complete or not self._is_trusted(task)
            new = (
                (done, result.worker)
                for result in (self._of_task(task, results, held) if sent else ())
                for done in result.parts
            )
            for part, meta in self._in_order(task, old, new, all_before=all_before):
                if part.piece != count:
                    break
                self._count(task, part, meta, all_before=all_before)
                count, is_over = count + 1, part.last
                yield part, meta is not None
            if not is_over:
                raise PrepareError("a task ended without a part", path=task.pieces[0].place.path)

    def _missing(self, listed: Mapping[int, list[PartName]], complete: Mapping[int, list[PartName]]) -> Iterator[Task]:
        for task in self.tasks:
            if not self.options.takes(task.number):
                continue
            parts, trusted = listed.get(task.number, []), self._is_trusted(task)
            if task.number in complete:
                if not trusted:
                    yield replace(task, look=tuple(parts))
            elif task.in_parts and self.options.executor in HERE:
                yield from cut_parts(task, self.plan.task_bytes, parts, trusted=trusted)
            else:
                yield replace(task, done=tuple(part.piece for part in parts))

    def _is_trusted(self, task: Task) -> bool:
        """Return whether inputs of finished parts are known to be unchanged, by whole digests or modification times."""
        known, inputs = self.work.plan, self.material.inputs
        return known is None or all(
            inputs[piece.file].digested_whole or known.inputs[piece.file].mtime_ns == inputs[piece.file].mtime_ns
            for piece in task.pieces
        )

    def _of_task(self, task: Task, results: Iterator[Result], held: list[Result]) -> Iterator[Result]:
        """Yield the results of a task: one, or several for a large compressed file. `held`: the first of the next."""
        many = task.in_parts and self.options.executor in HERE
        for result in itertools.chain(held[:], results):
            held.clear()
            if result.task != task.number:
                held.append(result)
                return
            yield result
            if not many:
                return

    def _in_order(
        self, task: Task, old: Sequence[PartName], new: Iterator[tuple[Done, str]], *, all_before: bool
    ) -> Iterator[tuple[PartName, PartMeta | None]]:
        """Merge the existing and the new parts of a task by their numbers."""
        waiting = list(reversed(old))
        for done, worker in new:
            if done.bad is not None or done.meta is None or done.name is None:
                while waiting:
                    yield waiting.pop(), None
                piece = done.bad_piece
                if piece is None or done.bad is None:
                    raise PrepareError("a task ended without a part", path=task.pieces[0].place.path)
                made = self._of_file if task.in_parts and self._file == piece.file else ()
                is_first = piece.file == task.pieces[0].file
                lines = self._lines_before(task, len(made), all_before=all_before) if is_first else 0
                raise bad_line(self.material.inputs[piece.file], done.bad, lines)
            if worker not in self._compared or not is_compared_by_worker(task.number, done.name.piece):
                if self.reference is not None:
                    self._compared.add(worker)
                self.compare(done.meta)
            while waiting and waiting[-1].piece < done.name.piece:
                yield waiting.pop(), None
            yield done.name, done.meta
        while waiting:
            yield waiting.pop(), None

    # --- counts

    def _count(self, task: Task, part: PartName, meta: PartMeta | None, *, all_before: bool) -> None:
        """Count a part. `meta` is None for existing parts; `all_before`: all tasks before it are counted too.

        Raises:
            PrepareError: a line was skipped and must not be.
        """
        counts = self.counts
        if part.num_dropped:
            self._note_dropped(task, part, all_before=all_before)
        counts.documents += part.documents
        counts.tokens += part.tokens
        counts.num_dropped += part.num_dropped
        for piece in () if meta is None else meta.pieces:
            counts.unknown_tokens += piece.unknown_tokens
            counts.dropped_characters += piece.dropped_characters
        if task.pieces[0].file != self._file:
            self._file = task.pieces[0].file
            self._of_file.clear()
            self._known_lines.clear()
        self._of_file.append(part)
        counts.tasks += 1
        counts.reused_tasks += meta is None
        inside_bytes = 0
        if part.last:
            self._done_bytes += task.size_bytes
        elif meta is not None:
            one = self.material.inputs[task.pieces[0].file]
            inside_bytes = meta.pieces[0].stop_bytes * one.size_bytes // max(1, text_bytes(one.name, one.size_bytes))
            inside_bytes = min(inside_bytes, one.size_bytes)
        if self.options.progress is not None:
            done_bytes = self._done_bytes + inside_bytes
            self.options.progress(PackProgress(counts.documents, counts.tokens, done_bytes, self.total_bytes))

    def _note_dropped(self, task: Task, part: PartName, *, all_before: bool) -> None:
        dropped = self.counts.dropped
        if self.skip and len(dropped) >= MOST_DROPPED:
            return
        lines: int | None = 0
        for piece in self.meta(part).pieces:
            if piece.num_dropped:
                one = self.material.inputs[piece.file]
                first = piece.file == task.pieces[0].file
                lines = self._lines_before(task, part.piece, all_before=all_before) if first else 0
                if not self.skip:
                    raise bad_line(one, piece.dropped[0], lines)
                for bad in piece.dropped[: MOST_DROPPED - len(dropped)]:
                    dropped.append(Dropped(one.name, 0 if lines is None else lines + bad.line + 1, bad.reason))

    def _lines_before(self, task: Task, part: int, *, all_before: bool) -> int | None:
        """Return the lines of a task's first file before one of its parts; None if this run doesn't know."""
        file, before = task.pieces[0].file, list[PartName]()
        if task.pieces[0].start_bytes:
            if not all_before or file != self._file:
                return None
            before += self._of_file
        if part:
            before += self.work.listed()[task.number][:part]
        for name in before:
            if name not in self._known_lines:
                self._known_lines[name] = sum(piece.lines for piece in self.meta(name).pieces if piece.file == file)
        return sum(self._known_lines[name] for name in before)


def bad_line(one: InputFile, bad: BadLine, before: int | None) -> PrepareError:
    """Return the error for an invalid line; `before`: lines of the input before its piece, if known."""
    unit = "row" if one.kind in TABLES else "line"
    number = f"{unit} {before + bad.line + 1}" if before is not None else f"a {unit}"
    return PrepareError(
        bad.reason if one.kind == "whole" else f"{number}: {bad.reason}",
        path=one.path,
        offset_bytes=bad.offset_bytes if one.compression == "none" and one.kind == "lines" else None,
        hint="Fix it, or skip and list invalid lines: on_error='skip' (--on-error skip)",
    )

"""The parts of all tasks of a share, in order: what is missing is encoded, what is there is taken, all is booked."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.abc import Executor
from penstock.engine.options import RunOptions
from penstock.engine.parts import BadLine, PartMeta, PartName, read_part
from penstock.engine.plan import Plan
from penstock.engine.work import Work, is_complete
from penstock.errors import PrepareError
from penstock.executors import HERE
from penstock.prepare.tokens.engine_choice import check_probes
from penstock.prepare.tokens.engines import EngineName, Reference
from penstock.prepare.tokens.inputs import TABLES, InputFile
from penstock.prepare.tokens.report import Dropped, PackProgress
from penstock.prepare.tokens.request import Material, Request, keeps_rows
from penstock.prepare.tokens.tasks import Task, cut_parts, text_bytes
from penstock.prepare.tokens.tokenize import MOST_DROPPED, Done, Job, Result, encode_task, is_compared_by_worker


@dataclass(slots=True)
class Counts:
    """What the parts so far hold.

    Attributes:
        request: what was asked for; `material` and `work` what it turned out to mean, and where it is done.
        total_bytes: of the inputs; of a share, of its tasks.
        tasks: so far, of which `reused_tasks` were finished before.
        documents, tokens, num_dropped: in their parts.
        dropped: the first lines that were left out.
        compared: the workers of which the texts of a part were compared here.
        num_unmasked: conversations of which no token is generated, known at the commit; `unmasked` are the first.
        num_endless: conversations in which no trained token ends the last answer, likewise.
        unknown_tokens, dropped_characters: in the parts that this run made.
        null_fields: fields of structs that were null in tables of conversations, known at the commit.
    """

    request: Request
    material: Material
    work: Work
    total_bytes: int
    tasks: int = 0
    reused_tasks: int = 0
    documents: int = 0
    tokens: int = 0
    num_dropped: int = 0
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    compared: set[str] = field(default_factory=set[str])
    num_unmasked: int = 0
    unmasked: list[Dropped] = field(default_factory=list[Dropped])
    num_endless: int = 0
    endless: list[Dropped] = field(default_factory=list[Dropped])
    null_fields: set[str] = field(default_factory=set[str])
    unknown_tokens: int = 0
    dropped_characters: int = 0
    _done_bytes: int = 0
    _of_file: list[PartName] = field(default_factory=list[PartName])
    _file: int = -1
    _known_lines: dict[PartName, int] = field(default_factory=dict[PartName, int])

    def add(self, task: Task, part: PartName, meta: PartMeta | None, *, all_before: bool) -> None:
        """Book a part.

        Args:
            task: what it is of.
            part: its name.
            meta: what it holds, where it was made just now.
            all_before: all tasks before it are booked too.

        Raises:
            PrepareError: a line was left out, and may not be.
        """
        if part.num_dropped:
            self._drop(task, part, all_before=all_before)
        self.documents += part.documents
        self.tokens += part.tokens
        self.num_dropped += part.num_dropped
        for piece in () if meta is None else meta.pieces:
            self.unknown_tokens += piece.unknown_tokens
            self.dropped_characters += piece.dropped_characters
        if task.pieces[0].file != self._file:
            self._file = task.pieces[0].file
            self._of_file.clear()
            self._known_lines.clear()
        self._of_file.append(part)
        self.tasks += 1
        self.reused_tasks += meta is None
        inside_bytes = 0
        if part.last:
            self._done_bytes += task.size_bytes
        elif meta is not None:
            one = self.material.inputs[task.pieces[0].file]
            inside_bytes = meta.pieces[0].stop_bytes * one.size_bytes // max(1, text_bytes(one.name, one.size_bytes))
            inside_bytes = min(inside_bytes, one.size_bytes)
        now = PackProgress(self.documents, self.tokens, self._done_bytes + inside_bytes, self.total_bytes)
        if self.request.options.progress is not None:
            self.request.options.progress(now)

    def refuse(self, task: Task, done: Done, *, all_before: bool) -> PrepareError:
        """The error for the bad line at which the next part of a task ended."""
        piece, bad = done.bad_piece, done.bad
        if piece is None or bad is None:
            return PrepareError("a task ended without a part", path=task.pieces[0].place.path)
        first = piece.file == task.pieces[0].file
        made = self._of_file if task.in_parts and self._file == piece.file else ()
        lines = self._lines_before(task, len(made), all_before=all_before) if first else 0
        return bad_line(self.material.inputs[piece.file], bad, lines)

    def reported(self) -> dict[str, Any]:
        """Return the fields of a report that tell of lines and tasks."""
        return {
            "num_dropped": self.num_dropped,
            "dropped": tuple(self.dropped),
            "num_unmasked": self.num_unmasked,
            "unmasked": tuple(self.unmasked),
            "num_endless": self.num_endless,
            "endless": tuple(self.endless),
            "null_fields": tuple(sorted(self.null_fields)),
            "unknown_tokens": self.unknown_tokens,
            "dropped_characters": self.dropped_characters,
            "tasks": self.tasks,
            "reused_tasks": self.reused_tasks,
        }

    def _drop(self, task: Task, part: PartName, *, all_before: bool) -> None:
        if self.request.skip and len(self.dropped) >= MOST_DROPPED:
            return
        lines: int | None = 0
        for piece in self._meta(part).pieces:
            if piece.num_dropped:
                one = self.material.inputs[piece.file]
                first = piece.file == task.pieces[0].file
                lines = self._lines_before(task, part.piece, all_before=all_before) if first else 0
                if not self.request.skip:
                    raise bad_line(one, piece.dropped[0], lines)
                room = MOST_DROPPED - len(self.dropped)
                self.dropped += [_dropped(one, lines, bad) for bad in piece.dropped[:room]]

    def _lines_before(self, task: Task, part: int, *, all_before: bool) -> int | None:
        """Lines of a task's first file before one of its parts; None where that is not known here."""
        file, before = task.pieces[0].file, list[PartName]()
        if task.pieces[0].start_bytes:
            if not all_before or file != self._file:
                return None
            before += self._of_file
        if part:
            before += self.work.listed()[task.number][:part]
        for name in before:
            if name not in self._known_lines:
                pieces = self._meta(name).pieces
                self._known_lines[name] = sum(piece.lines for piece in pieces if piece.file == file)
        return sum(self._known_lines[name] for name in before)

    def _meta(self, part: PartName) -> PartMeta:
        return read_part(self.work.parts.child(part.path), self.material.spec.token_bytes)[0]


def _dropped(one: InputFile, base: int | None, bad: BadLine) -> Dropped:
    return Dropped(one.name, 0 if base is None else base + bad.line + 1, bad.reason)


class EncodingJob(Protocol):
    """What encoding needs of a job; see `penstock.prepare.tokens.job.PackJob`."""

    request: Request
    options: RunOptions
    pool: Executor
    material: Material
    engine: EngineName

    @property
    def tasks(self) -> Iterable[Task]: ...

    def plan(self) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Encoding:
    """One pass over the tasks of a run: missing parts are encoded, existing ones are counted.

    Attributes:
        job: what to encode, and with which workers.
        work: where the parts are.
    """

    job: EncodingJob
    work: Work

    def run(self, counts: Counts) -> Iterator[tuple[PartName, bool]]:
        """The parts of the chosen tasks, in order, once they are there, and whether they were made now.

        Raises:
            PrepareError: a bad line that is not to be skipped, or the reference disagrees.
        """
        listed = self.work.listed()
        there = {task: parts for task, parts in listed.items() if is_complete(parts)}
        results = self.job.pool.map(encode_fn(self.job, self.work), self._missing(listed, there))
        held: list[Result] = []
        all_before = True
        for task in self.job.tasks:
            if not self.job.options.takes(task.number):
                all_before = False
                continue
            old, count, is_over = listed.get(task.number, []), 0, False
            sent = task.number not in there or not self._trusts(task)
            new = (
                (done, result.worker)
                for result in self._of_task(task, results, held, sent=sent)
                for done in result.parts
            )
            for part, meta in self._in_order(task, old, new, counts, all_before=all_before):
                if part.piece != count:
                    break
                counts.add(task, part, meta, all_before=all_before)
                count, is_over = count + 1, part.last
                yield part, meta is not None
            if not is_over:
                raise PrepareError("a task ended without a part", path=task.pieces[0].place.path)

    def _in_order(
        self, task: Task, old: Sequence[PartName], new: Iterator[tuple[Done, str]], counts: Counts, *, all_before: bool
    ) -> Iterator[tuple[PartName, PartMeta | None]]:
        """The parts of a task that were there, and those that are made, by their numbers."""
        waiting = list(reversed(old))
        for done, worker in new:
            if done.bad is not None or done.meta is None or done.name is None:
                while waiting:
                    yield waiting.pop(), None
                raise counts.refuse(task, done, all_before=all_before)
            here = worker not in counts.compared or not is_compared_by_worker(task.number, done.name.piece)
            if self.reference is not None and here:
                counts.compared.add(worker)
                check_probes(self.reference, done.meta.probes, self.job.material.inputs)
            while waiting and waiting[-1].piece < done.name.piece:
                yield waiting.pop(), None
            yield done.name, done.meta
        while waiting:
            yield waiting.pop(), None

    def _trusts(self, task: Task) -> bool:
        """Whether what is finished needs no look at its input: its whole digest, or its time of change, says so."""
        known = self.work.plan
        if known is None:
            return True
        inputs = self.job.material.inputs
        return all(
            inputs[piece.file].digested_whole or known.inputs[piece.file].mtime_ns == inputs[piece.file].mtime_ns
            for piece in task.pieces
        )

    def _missing(self, listed: Mapping[int, list[PartName]], there: Mapping[int, list[PartName]]) -> Iterator[Task]:
        for task in self.job.tasks:
            if not self.job.options.takes(task.number):
                continue
            parts, trusted = listed.get(task.number, []), self._trusts(task)
            if task.number in there:
                if not trusted:
                    yield replace(task, look=tuple(parts))
            elif task.in_parts and self.job.options.executor in HERE:
                yield from cut_parts(task, self.job.plan().task_bytes, parts, trusted=trusted)
            else:
                yield replace(task, done=tuple(part.piece for part in parts))

    def _of_task(self, task: Task, results: Iterator[Result], held: list[Result], *, sent: bool) -> Iterator[Result]:
        """The results of a task: one, or as many as a large compressed file was cut into."""
        if not sent:
            return
        many = task.in_parts and self.job.options.executor in HERE
        for result in itertools.chain(held[:], results):
            held.clear()
            if result.task != task.number:
                held.append(result)
                return
            yield result
            if not many:
                return

    @property
    def reference(self) -> Reference | None:
        """What parts are compared with; None where it encoded them itself."""
        return self.job.material.reference if self.job.engine == "gigatoken" else None


def encode_fn(job: EncodingJob, work: Work) -> Callable[[Task], Result]:
    """Return the function by which workers encode a task."""
    material, compared = job.material, job.engine == "gigatoken"
    excluded = {file: one.excluded for file, one in enumerate(material.inputs) if one.excluded}
    remember = keeps_rows(job.request, material)
    of_parts = (job.request.skip, work.parts, job.plan().task_bytes, remember, compared, excluded or None)
    shared = Job(material.spec, job.engine, material.selection, *of_parts, fill_in=material.fill_in)
    return functools.partial(encode_task, shared)


def bad_line(one: InputFile, bad: BadLine, before: int | None) -> PrepareError:
    """The error for a line that gives no document.

    Args:
        one: the input.
        bad: the line, by its number in its piece.
        before: lines of the input before the piece; None where that is not known here.
    """
    unit = "row" if one.kind in TABLES else "line"
    number = f"{unit} {before + bad.line + 1}" if before is not None else f"a {unit}"
    return PrepareError(
        bad.reason if one.kind == "whole" else f"{number}: {bad.reason}",
        path=one.path,
        offset_bytes=bad.offset_bytes if one.compression == "none" and one.kind == "lines" else None,
        hint="Fix it, or skip and list invalid lines: on_error='skip' (--on-error skip)",
    )

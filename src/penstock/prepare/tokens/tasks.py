"""The cut: which pieces of which inputs are a task. It decides what a restart finds finished, and nothing else.

A task is a run of whole small files, or a range of a large one: a function of the plan alone. A large compressed file
is one task of several parts, as nobody can enter it in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.engine.parts import PartName
from penstock.formats.jsonl.decompress import cut_stream
from penstock.prepare.tokens.inputs import Compression, InputFile, Kind
from penstock.store.place import Place

_LEAST_BYTES = 1 << 23
_MOST_BYTES = 1 << 26
_MOST_FILES = 1 << 12
_WANTED = 64
_EXPANSION = 4  # of compressed text, roughly


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one input, or all of it.

    Attributes:
        file: number of the input.
        place: the input.
        start_bytes: lines, or row groups, that begin in `[start_bytes, stop_bytes)` belong to it.
        stop_bytes: see there.
        size_bytes: of the file.
        kind: how the file is read.
        compression: how it is compressed; then the piece is all of it.
    """

    file: int
    place: Place
    start_bytes: int
    stop_bytes: int
    size_bytes: int
    kind: Kind = "lines"
    compression: Compression = "none"

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its file."""
        return self.start_bytes == 0 and self.stop_bytes == self.size_bytes


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines that were decompressed: where they begin in the decompressed file, and they."""

    offset_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Task:
    """What is encoded in one go.

    Attributes:
        number: among all tasks.
        pieces: what is read, in order.
        in_parts: it is one large compressed file, and has several parts.
        part: the one of them whose lines `lines` are; with no lines, all of them are made.
        last: whether `part` is the last one.
        lines: see there.
        done: of a large compressed file, the parts that are there.
        look: parts that are there, of which only the input is looked at: it may have changed.
    """

    number: int
    pieces: tuple[Piece, ...]
    in_parts: bool = False
    part: int = 0
    last: bool = True
    lines: Lines | None = None
    done: tuple[int, ...] = ()
    look: tuple[PartName, ...] = ()

    @property
    def described(self) -> str:
        """What it reads, for errors."""
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) > 1:
            return f"{len(self.pieces)} files from {first.place.shown} to {last.place.shown}"
        return f"{first.place.shown}, bytes {first.start_bytes} to {first.stop_bytes}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the inputs that it reads."""
        return sum(piece.stop_bytes - piece.start_bytes for piece in self.pieces)


def default_task_bytes(total_bytes: int) -> int:
    """Enough tasks to spread well and to lose little by a kill, none too small for what each costs."""
    return min(max(total_bytes // _WANTED, _LEAST_BYTES), _MOST_BYTES)


def text_bytes(name: str, size_bytes: int) -> int:
    """Roughly how much text a file holds."""
    return size_bytes * (_EXPANSION if name.endswith((".gz", ".zst")) else 1)


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """All tasks in input order. Each iteration cuts them anew, so that they take no memory."""

    inputs: Sequence[InputFile]
    task_bytes: int

    def __iter__(self) -> Iterator[Task]:
        return cut_tasks(self.inputs, self.task_bytes)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def cut_tasks(inputs: Sequence[InputFile], task_bytes: int) -> Iterator[Task]:
    """All tasks in input order: a function of names, sizes and kinds."""
    number, run, run_bytes = 0, list[Piece](), 0
    for file, one in enumerate(inputs):
        pieces, in_parts = _pieces(file, one, task_bytes)
        if pieces is None:
            run.append(Piece(file, one.source, 0, one.size_bytes, one.size_bytes, one.kind, one.compression))
            run_bytes += text_bytes(one.name, one.size_bytes)
            if run_bytes < task_bytes and len(run) < _MOST_FILES:
                continue
        if run:
            yield Task(number, tuple(run))
            number, run, run_bytes = number + 1, [], 0
        for piece in pieces or ():
            yield Task(number, (piece,), in_parts)
            number += 1
    if run:
        yield Task(number, tuple(run))


def cut_parts(task: Task, task_bytes: int, names: Sequence[PartName] = (), *, trusted: bool = True) -> Iterator[Task]:
    """The parts of a large compressed file that are missing, as tasks with lines; decompressed as they are asked for.

    Args:
        task: the file.
        task_bytes: least size of a part, decompressed.
        names: the parts that are there.
        trusted: these need no look at their lines; else they come too, to be looked at.
    """
    piece = task.pieces[0]
    there = {name.piece: name for name in names}
    for part, (offset_bytes, data, last) in enumerate(cut_stream(piece.place, piece.compression, task_bytes)):
        name = there.get(part)
        if name is None or not trusted:
            look = () if name is None else (name,)
            yield replace(task, part=part, last=last, lines=Lines(offset_bytes, data), look=look)


def _pieces(file: int, one: InputFile, task_bytes: int) -> tuple[list[Piece] | None, bool]:
    """`(pieces of a large file, whether they are one task of several parts)`; None for a small one."""
    whole = one.kind == "whole"
    if whole or text_bytes(one.name, one.size_bytes) <= task_bytes:
        return None, False
    all_of_it = Piece(file, one.source, 0, one.size_bytes, one.size_bytes, one.kind, one.compression)
    if one.compression != "none":
        return [all_of_it], True
    ranges = ((start, min(start + task_bytes, one.size_bytes)) for start in range(0, one.size_bytes, task_bytes))
    return [replace(all_of_it, start_bytes=start, stop_bytes=stop) for start, stop in ranges], False

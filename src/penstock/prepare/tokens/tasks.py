"""Tasks: runs of small files, and ranges of large ones. A restart reuses finished tasks; the output doesn't change.

Tasks depend only on names, sizes and kinds of inputs. A large compressed file is one task with several parts, since it
can't be read from the middle.
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
    """A range of input number `file`, or all of it: lines or row groups that begin in `[start_bytes, stop_bytes)`.

    `size_bytes` is the size of the file. A piece of a compressed file is all of it.
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
class Task:
    """Input that is encoded at once.

    Attributes:
        in_parts: it is one large compressed file, which makes several parts.
        part: the number of the part whose lines `lines` are, or 0; `last`: whether it is the last one.
        lines: offset in the decompressed file, and whole lines; None: the task makes all parts.
        done: of a large compressed file, the existing parts.
        look: existing parts of which only the input is read, since it may have changed.
    """

    number: int
    pieces: tuple[Piece, ...]
    in_parts: bool = False
    part: int = 0
    last: bool = True
    lines: tuple[int, bytes] | None = None
    done: tuple[int, ...] = ()
    look: tuple[PartName, ...] = ()

    @property
    def described(self) -> str:
        """Its input, for errors."""
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) > 1:
            return f"{len(self.pieces)} files from {first.place.shown} to {last.place.shown}"
        return f"{first.place.shown}, bytes {first.start_bytes} to {first.stop_bytes}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the inputs that it reads."""
        return sum(piece.stop_bytes - piece.start_bytes for piece in self.pieces)


def default_task_bytes(total_bytes: int) -> int:
    """Return a size with enough tasks for many workers and little loss in a kill, but few enough to be cheap."""
    return min(max(total_bytes // _WANTED, _LEAST_BYTES), _MOST_BYTES)


def text_bytes(name: str, size_bytes: int) -> int:
    """Estimate how much text a file contains."""
    return size_bytes * (_EXPANSION if name.endswith((".gz", ".zst")) else 1)


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """All tasks in input order. Each iteration cuts them again, so that they take no memory."""

    inputs: Sequence[InputFile]
    task_bytes: int

    def __iter__(self) -> Iterator[Task]:
        number, small, small_bytes = 0, list[Piece](), 0
        for file, one in enumerate(self.inputs):
            whole = Piece(file, one.source, 0, one.size_bytes, one.size_bytes, one.kind, one.compression)
            is_small = one.kind == "whole" or text_bytes(one.name, one.size_bytes) <= self.task_bytes
            if is_small:
                small.append(whole)
                small_bytes += text_bytes(one.name, one.size_bytes)
                if small_bytes < self.task_bytes and len(small) < _MOST_FILES:
                    continue
            if small:
                yield Task(number, tuple(small))
                number, small, small_bytes = number + 1, [], 0
            if is_small:
                continue
            in_parts = one.compression != "none"
            step = one.size_bytes if in_parts else self.task_bytes
            for start in range(0, one.size_bytes, step):
                stop = min(start + step, one.size_bytes)
                yield Task(number, (replace(whole, start_bytes=start, stop_bytes=stop),), in_parts)
                number += 1
        if small:
            yield Task(number, tuple(small))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def cut_parts(task: Task, task_bytes: int, names: Sequence[PartName] = (), *, trusted: bool = True) -> Iterator[Task]:
    """Yield the missing parts of a large compressed file as tasks with lines, which are decompressed lazily.

    A part has at least `task_bytes` of decompressed lines. Those in `names` exist. Unless these are `trusted`, they are
    yielded too, to compare their lines.
    """
    piece = task.pieces[0]
    existing = {name.piece: name for name in names}
    for part, (offset_bytes, data, last) in enumerate(cut_stream(piece.place, piece.compression, task_bytes)):
        name = existing.get(part)
        if name is None or not trusted:
            look = () if name is None else (name,)
            yield replace(task, part=part, last=last, lines=(offset_bytes, data), look=look)

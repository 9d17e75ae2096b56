"""Pieces of an output, made by the workers of an executor: names and ranges cross to them and back, never rows.

A worker opens the source by itself, does with a range of rows what the verb does, and leaves what comes out in a file.
The process that has the writer appends these files in the order of their ranges, and removes each. So the bytes of the
output are those of one process that does it all. The files lie in `.<name>.pieces` beside the output, which a lock
holds; for an output in another store in the folder of uploads.

| bytes of a file | content |
|---|---|
| 0 … D | rows, back to back in segments: little-endian tokens in the width of the output, or bytes |
| … + 0 to 7 | to a multiple of 8 |
| … + 24·S | int64[S, 3]: group, units and rows of each segment |
| … + 8·R | int64[R]: units of each row |
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock._digest import digest
from penstock._secrets import redact
from penstock.abc import Executor
from penstock.codec.tokens import dtype_for
from penstock.engine.folder import WorkFolder, work_beside
from penstock.engine.shared import work_folder
from penstock.errors import ConfigError, PrepareError
from penstock.executors import HERE, AnyExecutor, make_executor, require_executor
from penstock.reshape.rows import AnyRows, Rows, RowsAt, read_run, runs
from penstock.store._named import named
from penstock.store.derived import upload_folder
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.types import Buffer, IntArray

TaskT = TypeVar("TaskT")
LeftT = TypeVar("LeftT")

Groups = Iterator[tuple[int, NDArray[Any], IntArray]]
"""`(group, any[n_units] back to back, int64[k] lengths)`."""

PIECE_BYTES = 1 << 26
"""About so much of the input is one task."""

_PRELOAD = ("penstock.reshape.pieces",)
_SUFFIX = ".piece"


@dataclass(frozen=True, slots=True)
class Workers:
    """Who works, as it was asked for.

    Attributes:
        executor: name or object; None: processes where `workers` are more than one.
        workers: how many.
    """

    executor: AnyExecutor | None = None
    workers: int | None = None

    @property
    def are_alone(self) -> bool:
        """Whether this process does everything."""
        return self.executor == "inline" or (self.executor is None and self.workers in (None, 1))


ALONE = Workers()


def hands_for(executor: AnyExecutor | None, workers: int | None, *, dry_run: bool) -> Workers:
    """Who works: in a dry run this process alone; raises `ConfigError` where there is no such executor."""
    require_executor(executor or "processes", workers)
    return ALONE if dry_run else Workers(executor, workers)


class Make(Protocol):
    """What a verb does with a range; picklable."""

    def __call__(self, rows: AnyRows, task: Range, /) -> Groups:
        """The rows that come out of a range, by group."""
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """The rows of a range as they are."""

    def __call__(self, rows: AnyRows, task: Range, /) -> Groups:
        """The rows of the range, in runs."""
        for at, end in runs(rows, task.first, task.stop):
            yield 0, *read_run(rows, at, end)


@dataclass(frozen=True, slots=True)
class Range:
    """A task.

    Attributes:
        source: number of the source.
        first: index of the first row.
        stop: index behind the last one.
        described: what an error calls it.
        bits: one a row, where the caller has something to say of each.
    """

    source: int
    first: int
    stop: int
    described: str
    bits: bytes = b""

    @property
    def num_samples(self) -> int:
        """Rows that it reads."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task left in its file."""

    data_bytes: int
    num_segments: int
    num_rows: int


class Job:
    """What every worker gets; it keeps the source that it opened last.

    Args:
        sources: by number.
        make: what is done.
        unit_bytes: width of the tokens of the output; 1 for bytes.
    """

    __slots__ = ("_opened", "make", "sources", "stored")

    def __init__(self, sources: tuple[RowsAt, ...], make: Make, unit_bytes: int) -> None:
        self.sources = sources
        self.make = make
        self.stored = dtype_for(unit_bytes, "<")
        self._opened: tuple[int, AnyRows] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (Job, (self.sources, self.make, self.stored.itemsize))

    def rows(self, source: int) -> AnyRows:
        """A source, open."""
        if self._opened is None or self._opened[0] != source:
            self._opened = None
            self._opened = (source, self.sources[source].rows())
        return self._opened[1]


def ranges_of(source: int, rows: Rows) -> Iterator[Range]:
    """Tasks for all rows of a source, in order: whole runs, together some `PIECE_BYTES`."""
    most = PIECE_BYTES // rows.dtype.itemsize
    opened = held = 0
    for first, stop in runs(rows):
        units = int(rows.ranges(slice(first, stop))[1].sum())
        if held and held + units > most:
            yield _range(source, rows, opened, first)
            opened, held = first, 0
        held += units
    if opened < len(rows):
        yield _range(source, rows, opened, len(rows))


def _range(source: int, rows: Rows, first: int, stop: int) -> Range:
    return Range(source, first, stop, f"{redact(rows.place.path)}, samples {first} to {stop}")


def make_piece(job: Job, file: Place, task: Range) -> Piece:
    """Do one task; runs where the executor has it."""
    rows, stored = job.rows(task.source), job.stored
    segments: list[tuple[int, int, int]] = []
    lengths: list[IntArray] = []
    data_bytes = 0

    def content() -> Iterator[Buffer]:
        nonlocal data_bytes
        for group, data, some in job.make(rows, task):
            data_bytes += len(data) * stored.itemsize
            segments.append((group, len(data), len(some)))
            lengths.append(some)
            yield np.ascontiguousarray(data, stored).view(np.uint8)
        yield bytes(-data_bytes % 8)
        yield np.array(segments, np.int64).tobytes()
        yield np.concatenate([np.empty(0, np.int64), *lengths]).tobytes()

    leave(file, content())
    return Piece(data_bytes, len(segments), sum(map(len, lengths)))


def leave(file: Place, content: Iterable[Buffer]) -> None:
    """Write a file for the process that has the writer; it need not last."""
    with open(file.path, "xb") as opened:
        for data in content:
            opened.write(byte_view(data))


def whole(file: Place, size_bytes: int) -> NDArray[np.uint8]:
    """uint8[size_bytes]: what a worker left, mapped; raises `PrepareError` where that is not all of it."""
    found = file.store.size(file.path)
    if found != size_bytes:
        what, hint = "the output of a worker is incomplete", "Check that all workers can access the output folder"
        raise PrepareError(what, path=file.path, found=f"{found} bytes", expected=f"{size_bytes} bytes", hint=hint)
    return LocalStore().mmap(file.path)


@dataclass(frozen=True, slots=True)
class _Leave(Generic[TaskT, LeftT]):
    """Does a task that leaves a file; it may run more than once, and each time the file has another name."""

    fn: Callable[[Place, TaskT], LeftT]
    folder: Place

    def __call__(self, task: TaskT) -> tuple[str, LeftT]:
        file = self.folder.child(f"{secrets.token_hex(16)}{_SUFFIX}")
        try:
            return file.name, self.fn(file, task)
        except OSError as error:
            raise named(error, file.path) from None


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one group in a file that a worker left.

    Attributes:
        group: their group.
        data: any[n_units]: back to back, mapped.
        lengths: int64[k], in units.
        file: where they are.
        offset_bytes: where they begin in it.
    """

    group: int
    data: NDArray[Any]
    lengths: IntArray
    file: Place
    offset_bytes: int


@dataclass(slots=True)
class Pieces:
    """The workers of one run and the folder of their files; both begin with the first task. For a `with` block.

    Attributes:
        workers: who they are.
        output: what is made.
        folder: where the files lie.
    """

    workers: Workers
    output: Place
    folder: WorkFolder
    _exit: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _pool: Executor | None = None

    def made(
        self,
        sources: Sequence[RowsAt],
        make: Make,
        tasks: Iterable[Range],
        unit_bytes: int,
    ) -> Iterator[tuple[Range, Iterator[Segment]]]:
        """Each task and what came out of it, in order; a file is gone when the next one is asked for.

        Args:
            sources: by number.
            make: what is done.
            tasks: with which ranges.
            unit_bytes: width of the tokens of the output; 1 for bytes.

        Raises:
            PenstockError: of the first task that failed.
        """
        tasks = list(tasks)
        job = Job(tuple(sources), make, unit_bytes)
        left = self.files(len(tasks), [one.place for one in sources], functools.partial(make_piece, job), tasks)
        for task, (name, piece) in zip(tasks, left, strict=True):
            with self.taken(name) as file:
                yield task, _segments(file, piece, unit_bytes)

    def files(
        self, num_tasks: int, reads: Sequence[Place], fn: Callable[[Place, TaskT], LeftT], tasks: Iterable[TaskT]
    ) -> Iterator[tuple[str, LeftT]]:
        """The name of the file that each task left, and what `fn` gave, in order; see `taken`.

        Args:
            num_tasks: how many there are.
            reads: what they read.
            fn: picklable; makes a file at this place. Runs where the executor has it.
            tasks: what it does.
        """
        return iter(self._begun(num_tasks, reads).map(_Leave(fn, self.folder.place), tasks))

    @contextlib.contextmanager
    def taken(self, name: str) -> Generator[Place]:
        """A file that a worker left; it is removed behind the block."""
        file = self.folder.file(name)
        yield file
        file.store.delete(file.path)

    def _begun(self, num_tasks: int, reads: Sequence[Place]) -> Executor:
        """The executor, which begins here, and with it the folder.

        Raises:
            ConfigError: it can't be had, or its workers can't leave files where this process finds them.
            PrepareError: another run has the folder.
        """
        if self._pool is None:
            given = self.workers.executor
            if not self.output.is_local and isinstance(given, str) and given not in HERE:
                raise ConfigError(
                    "workers on other machines need a shared file system for intermediate files next to the output",
                    path=self.output.path,
                    found=given,
                    expected="an output on a shared file system, or processes",
                    hint="Write there and copy the result, or omit --executor (executor=)",
                )
            busy = PrepareError("another run is writing this output", path=self.output.path, hint="Wait for it")
            self._exit.enter_context(self.folder.held(busy))
            self._exit.callback(self.folder.drop)
            self._exit.callback(self.folder.clear)
            self.folder.clear()
            name = "processes" if given is None else given
            made = make_executor(
                name,
                self.workers.workers,
                _PRELOAD,
                alone=num_tasks <= 1,
                most=num_tasks,
                reads=reads,
                writes=[self.folder.place],
            )
            self._pool = self._exit.enter_context(made)
        return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._exit.close()


def pieces_for(workers: Workers, output: Place) -> Pieces:
    """What makes pieces of an output; begins nothing."""
    return Pieces(workers, output, _folder(output))


def sweep_pieces(output: Place) -> None:
    """Remove what a killed run left of its pieces, where no other run has them.

    Raises:
        ConfigError: shared work on the output is unfinished, of which a run alone knows nothing.
    """
    if work_folder(output.bare(), inside=False).is_there():
        raise ConfigError(
            "a distributed job for this output is unfinished",
            path=output.path,
            hint="Finish it with the command that started it, or discard it: --finish --no-work --restart",
        )
    folder = _folder(output)
    if folder.is_there():
        with folder.tried() as had:
            if had:
                folder.clear()
                folder.drop()


def _folder(output: Place) -> WorkFolder:
    if output.is_local:
        return work_beside(output.bare(), "pieces", _is_ours)
    return WorkFolder(
        LocalStore(), Place(LocalStore(), upload_folder()).child(f".{digest(output.path)}.pieces").path, _is_ours
    )


def _is_ours(name: str) -> bool:
    return name.endswith(_SUFFIX)


def _segments(file: Place, piece: Piece, unit_bytes: int) -> Iterator[Segment]:
    """The segments of a file, in order."""
    stored = dtype_for(unit_bytes, "<")
    table_at = piece.data_bytes + -piece.data_bytes % 8
    lengths_at = table_at + 24 * piece.num_segments
    if not piece.num_rows:
        return
    data = whole(file, lengths_at + 8 * piece.num_rows)
    table = data[table_at:lengths_at].view(np.int64).reshape(-1, 3)
    lengths = data[lengths_at:].view(np.int64)
    at = row = 0
    for group, units, count in table.tolist():
        end = at + units * stored.itemsize
        yield Segment(group, data[at:end].view(stored), lengths[row : row + count], file, at)
        at, row = end, row + count

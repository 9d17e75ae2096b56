"""Position of a loader in its run, and the iterators that follow it."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from penstock._threads import has_ended, only_exit_handlers_run, when_dropped
from penstock.errors import ConfigError
from penstock.load import lanes
from penstock.load.lanes import LaneTask
from penstock.load.read import ReadTask, read_batches
from penstock.load.workers import Handed, Wait, WorkersFactory

Deliver: TypeAlias = Callable[[Any, Mapping[str, float], float], Any]
"""(batch, stage → seconds spent on it, time of the request) → the value that the caller gets."""


@dataclass(slots=True)
class Cursor:
    """Position of the loader in its run, shared by its iterators.

    Attributes:
        task: the task since the loader was last moved; a new object after each move.
        ended: an iterator has reached the end of the pass.
        closed: reading has ended for good.
        places: positions of the rank's lanes at batch `number`; None for streams with global positions.
        step_places: lane positions after the last complete step.
        taken: process → its thread that is taking a batch. Two at once would lose and duplicate batches.
    """

    task: ReadTask | LaneTask
    number: int = 0
    ended: bool = False
    closed: bool = False
    places: lanes.Places | None = field(init=False)
    step_places: lanes.Places | None = field(init=False)
    running: Pipeline | None = None
    taken: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self.move(self.task)

    def move(self, task: ReadTask | LaneTask) -> None:
        self.task, self.number, self.ended = task, 0, False
        self.places = self.step_places = task.places if isinstance(task, LaneTask) else None

    def copy(self) -> Cursor:
        """Return a cursor at the same position, with nothing prefetched yet."""
        made = copy.copy(self)
        made.running, made.taken = None, {}
        return made

    def rest(self) -> ReadTask | LaneTask:
        """Return the task from batch `number` on."""
        return self.task if self.places is None or isinstance(self.task, ReadTask) else self.task.at(self.places)

    def advance(self, places: lanes.Places | None) -> None:
        self.number += 1
        if self.places is None or places is None or isinstance(self.task, ReadTask):
            return
        self.places = {**self.places, **places}
        if self.number % self.task.micro_batches == 0:
            self.step_places = self.places

    def ready(self) -> int:
        return 0 if self.running is None else self.running.ready()


class Batches(Iterator[Any]):
    """Iterator over a loader's batches. It follows the loader when that seeks or loads a state."""

    def __init__(self, cursor: Cursor, pipeline: PipelineFactory, deliver: Deliver) -> None:
        self._cursor = cursor
        self._deliver = deliver
        self._factory = pipeline
        self._running: Pipeline | None = None
        # The next value of the running pipeline, with the process that requested it.
        self._task: ReadTask | LaneTask | None = None
        self._number = 0
        self._pid = 0
        self._at_end = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        cursor, process, thread = self._cursor, os.getpid(), threading.get_ident()
        if cursor.closed:
            raise closed()
        try:
            # If an interrupt left one, it belongs to this thread.
            if cursor.taken.setdefault(process, thread) != thread:
                hint = "Take batches in a single thread and pass them on, or give each thread its own loader"
                raise ConfigError("another thread is taking a batch of this loader", hint=hint)
            return self._take(cursor)
        finally:
            if cursor.taken.get(process) == thread:
                del cursor.taken[process]

    def _take(self, cursor: Cursor) -> Any:
        task = cursor.task
        if task.num_batches is not None and cursor.number >= task.num_batches:
            self.close()
            cursor.ended = True
            raise StopIteration
        before = cursor.number, cursor.places, cursor.step_places
        try:
            running = self._fitting()
            asked_at = time.perf_counter()
            # Until the batch is counted the pipeline is one ahead: after an interrupt at any point it is restarted.
            self._number = -1
            batch, seconds, places = next(running)
            cursor.advance(places)
            made = self._deliver(batch, seconds, asked_at)
        except BaseException:
            # The loader keeps its position, so that the same batch can be requested again.
            cursor.number, cursor.places, cursor.step_places = before
            self.close()
            if cursor.closed:  # by another thread, while this one waited
                raise closed() from None
            only_exit_handlers_run()
            raise
        self._number = cursor.number
        return made

    def close(self) -> None:
        """Stop the threads. Requesting another batch starts new ones."""
        running, self._running = self._running, None
        if self._cursor.running is running:
            self._cursor.running = None
        # After a fork, threads and their locks belong to the parent.
        if running is not None and self._pid == os.getpid():
            running.close()

    __del__ = when_dropped(close)

    def _fitting(self) -> Pipeline:
        """Return the running pipeline if it delivers the next batch, else start a new one."""
        running, cursor = self._running, self._cursor
        here = self._task is cursor.task and self._number == cursor.number
        if running is not None and here and self._pid == os.getpid() and self._at_end == has_ended():
            return running
        self.close()
        self._task, self._number, self._pid, self._at_end = cursor.task, cursor.number, os.getpid(), has_ended()
        made = self._running = cursor.running = self._factory(cursor.rest(), cursor.number)
        if cursor.closed:  # by another thread in the meantime
            raise closed()
        return made


def closed() -> ConfigError:
    return ConfigError(
        "the loader is closed",
        hint="Create a new loader; load_state_dict(closed.state_dict()) resumes where this one stopped",
    )


class Pipeline(Protocol):
    """Endless iterator over the batches of a task from one number on. The caller knows where to stop."""

    def __next__(self) -> Handed:
        """Return the next batch, or raise the error that reading it raised."""
        ...

    def ready(self) -> int:
        """Return roughly how many batches, or parts of them, are ready."""
        ...

    def close(self) -> None:
        """Stop the workers and release their resources. A second call does nothing."""
        ...


class PipelineFactory(Protocol):
    def __call__(self, task: ReadTask | LaneTask, first: int, /) -> Pipeline: ...


@dataclass(frozen=True, slots=True)
class Shares:
    """`Producer` in which worker w of W reads the batches `first + w, first + w + W, …` of a task."""

    task: ReadTask
    first: int
    workers: int

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Handed]:
        seconds: dict[str, float] = {}
        for batch in read_batches(self.task, self.first + worker, self.workers, wait, seconds):
            yield batch, dict(seconds), None
            seconds.clear()

    def place(self, worker: int, made: int, /) -> str:
        task, number = self.task, self.first + worker + made * self.workers
        first = task.first_position + task.stride * number * task.batch_size
        last = first + task.stride * (task.batch_size - 1)
        return f"positions {first} to {last}" + (f" in steps of {task.stride}" if task.stride > 1 else "")


class ReadAhead:
    """Pipeline that takes whole batches from the workers in turn, so nothing needs sorting.

    Memory: the prefetched batches of all workers, and the delivered one.
    """

    def __init__(self, task: ReadTask, first: int, workers: int, start: WorkersFactory) -> None:
        self._turn = 0
        self._num_workers = workers
        self._workers = start(Shares(task, first, workers), workers)

    def __next__(self) -> Handed:
        batch = self._workers.take(self._turn)
        self._turn = (self._turn + 1) % self._num_workers
        return batch

    def ready(self) -> int:
        return self._workers.ready()

    def close(self) -> None:
        self._workers.close()

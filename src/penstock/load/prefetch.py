"""Batches read ahead by workers, delivered in order."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from penstock.load.lanes import LaneTask
from penstock.load.read import ReadTask, read_batches
from penstock.load.workers import Handed, Wait, WorkersFactory


class Pipeline(Protocol):
    """Batches of a task in order, from one number on, without end: whoever asks knows how many there are."""

    def __next__(self) -> Handed:
        """The next batch; raises in its place what reading it raised."""
        ...

    def ready(self) -> int:
        """Batches, or parts of them, that wait to be taken, about."""
        ...

    def close(self) -> None:
        """Stop and let go of everything; a second call does nothing."""
        ...


class PipelineFactory(Protocol):
    """Starts reading a task."""

    def __call__(self, task: ReadTask | LaneTask, first: int, /) -> Pipeline:
        """A pipeline whose first batch has the number `first`."""
        ...


@dataclass(frozen=True, slots=True)
class Shares:
    """Worker w of W reads the batches `first + w, first + w + W, …` of a task: a `Producer`."""

    task: ReadTask
    first: int
    workers: int

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Handed]:
        """The batches of worker number `worker`, each with the seconds spent on it."""
        seconds: dict[str, float] = {}
        for batch in read_batches(self.task, self.first + worker, self.workers, wait, seconds):
            yield batch, dict(seconds), None
            seconds.clear()

    def place(self, worker: int, made: int, /) -> str:
        """The batch that worker number `worker` makes after so many, and its positions."""
        task, number = self.task, self.first + worker + made * self.workers
        first = task.first_position + task.stride * number * task.batch_size
        last = first + task.stride * (task.batch_size - 1)
        return f"positions {first} to {last}" + (f" in steps of {task.stride}" if task.stride > 1 else "")


class ReadAhead:
    """Takes whole batches from the workers in turn, so order needs no sorting.

    Memory is what the workers may be ahead, besides the batch delivered.

    Args:
        task: what to read.
        first: number of the first batch.
        workers: how many there are, 1 or more.
        start: starts them.
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
        """Batches that wait to be taken."""
        return self._workers.ready()

    def close(self) -> None:
        """Stop the workers."""
        self._workers.close()

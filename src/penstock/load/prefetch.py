"""Batches read ahead by threads, handed out in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Protocol

from penstock.load.read import ReadTask, read_batches

_CLOSE_WAIT_S = 1.0


class Pipeline(Protocol):
    """Batches of a task in order, from one number on, without end: whoever asks knows how many there are."""

    def __next__(self) -> Any:
        """The next batch; raises in its place what reading it raised."""
        ...

    def close(self) -> None:
        """Stop and let go of everything; a second call does nothing."""
        ...


class PipelineFactory(Protocol):
    """Starts reading a task."""

    def __call__(self, task: ReadTask, first: int, /) -> Pipeline:
        """A pipeline whose first batch has the number `first`."""
        ...


class Threads:
    """Worker w of W reads the batches `first + w, first + w + W, …`, at most `prefetch` ahead each.

    The consumer takes from the workers in turn, so order needs no sorting, and memory is bounded by
    `workers · prefetch` batches besides the one handed out. Worker threads hold no reference to this object:
    dropping it ends them.

    Args:
        task: what to read.
        first: number of the first batch.
        workers: threads, 1 or more.
        prefetch: batches that each of them may be ahead, 1 or more.
    """

    def __init__(self, task: ReadTask, first: int, workers: int, prefetch: int) -> None:
        self._stopped = threading.Event()
        # One credit is the right to read one batch. Two plain queues a worker cost less than one lock for all.
        self._credits: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(workers)]
        self._results: list[SimpleQueue[tuple[Any, BaseException | None]]] = [SimpleQueue() for _ in range(workers)]
        self._turn = 0
        self._threads: list[threading.Thread] = []
        for worker in range(workers):
            batches = read_batches(task, first + worker, workers, self._stopped.wait)
            channel = (self._credits[worker], self._results[worker], self._stopped)
            for _ in range(prefetch):
                self._credits[worker].put(True)
            # Daemons, so that an iterator that nobody closed can't keep the interpreter from ending.
            name = f"penstock-load-{worker}"
            thread = threading.Thread(target=_work, args=(batches, *channel), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def __next__(self) -> Any:
        worker = self._turn
        batch, error = self._results[worker].get()
        if error is not None:
            raise error
        self._credits[worker].put(True)
        self._turn = (worker + 1) % len(self._results)
        return batch

    def close(self) -> None:
        """Stop the workers and wait for them, at most a second: one inside a slow read ends when that returns."""
        self._stopped.set()
        for credits in self._credits:
            credits.put(False)
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for thread in self._threads:
            # The garbage collector may run this in one of the workers.
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()


def _work(
    batches: Iterator[Any],
    credits: SimpleQueue[bool],
    results: SimpleQueue[tuple[Any, BaseException | None]],
    stopped: threading.Event,
) -> None:
    while credits.get() and not stopped.is_set():
        try:
            results.put((next(batches), None))
        except StopIteration:
            return
        except BaseException as error:
            results.put((None, error))
            return

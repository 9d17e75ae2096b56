"""Workers that prefetch results: threads by default, processes for work that holds Python's lock.

A `Producer` yields the results of worker w. Both kinds keep each worker at most `prefetch` results
ahead of its consumer, more if they are small: see `CreditWindow`.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeAlias

from penstock._ending import Worker, has_ended
from penstock.errors import PenstockError
from penstock.load.credits import CreditWindow, size_bytes

_CLOSE_WAIT_S = 1.0

WorkerKind: TypeAlias = Literal["threads", "processes"]

Handed: TypeAlias = tuple[Any, dict[str, float], Any]
"""A batch; stage → seconds that the workers spent on it; and the places of the rank's lanes after it, or None."""

Wait = Callable[[float], object]
"""Sleeps for some seconds; a true result means that no further results are wanted."""


class Producer(Protocol):
    """Generator of one worker's results, in order; picklable if it runs in a process."""

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Any]: ...

    def place(self, worker: int, made: int, /) -> str:
        """Describe what worker number `worker` produces after `made` results, for a message: such as "batch 7"."""
        ...


class Workers(Protocol):
    def take(self, worker: int, /) -> Any:
        """Return the next result of that worker, or raise the error that producing it raised."""
        ...

    def ready(self) -> int:
        """Return roughly how many results are ready."""
        ...

    def close(self) -> None:
        """Stop the workers and release their resources. A second call does nothing."""
        ...


class WorkersFactory(Protocol):
    def __call__(self, producer: Producer, workers: int, /) -> Workers: ...


class NoWorkers:
    """Synchronous replacement for workers: the calling thread produces each result on demand."""

    def __init__(self, producer: Producer) -> None:
        self._made = producer(0, time.sleep)

    def take(self, _worker: int, /) -> Any:
        return next(self._made)

    def ready(self) -> int:
        return 0

    def close(self) -> None:
        self._made.close()


_Results: TypeAlias = SimpleQueue[tuple[Any, BaseException | None, int]]


class ThreadWorkers:
    """Worker threads. They hold no reference to this object: deleting it ends them.

    Memory: `workers · prefetch` results; of small results up to 256 KiB per worker, and one more.
    """

    def __init__(self, producer: Producer, workers: int, prefetch: int, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._credits = [CreditWindow(prefetch) for _ in range(workers)]
        self._results: list[_Results] = [SimpleQueue() for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        for worker, credits in enumerate(self._credits):
            made = producer(worker, credits.sleep)
            thread = Worker(
                functools.partial(_work, made, credits, self._results[worker]),
                f"penstock-load-{worker}",
                stop=credits.stop,
                doing=functools.partial(_doing, producer, worker, credits),
            )
            self._threads.append(thread)
            thread.start()

    def take(self, worker: int, /) -> Any:
        try:
            result, error, result_bytes = self._results[worker].get(timeout=self._timeout_seconds)
        except Empty:
            raise too_slow(f"thread {worker}", self._timeout_seconds) from None
        if error is not None:
            raise error
        self._credits[worker].consumed(1, result_bytes)
        return result

    def ready(self) -> int:
        return sum(results.qsize() for results in self._results)

    def close(self) -> None:
        """Stop the threads and wait at most a second for them; a thread in a slow read ends when that returns."""
        for credits in self._credits:
            credits.stop()
        for results in self._results:  # another thread may be waiting
            results.put((None, PenstockError("the loader's threads are stopped"), 0))
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for thread in self._threads:
            # The garbage collector may run this in one of the workers, which can't wait for itself.
            if thread is not threading.current_thread() and not has_ended():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()


def too_slow(worker: str, timeout_seconds: float | None) -> PenstockError:
    return PenstockError(
        f"the loader's {worker} timed out: a read hangs, or a function never returns",
        found=f"no batch for {timeout_seconds:g} s",
        hint="Check the store and the functions of the stream. If batches take that long, raise timeout_seconds",
    )


def _doing(producer: Producer, worker: int, credits: CreditWindow) -> str:
    return producer.place(worker, credits.num_produced)


def _work(made: Iterator[Any], credits: CreditWindow, results: _Results) -> None:
    while credits.wait():
        try:
            result = next(made)
            result_bytes = credits.produced(size_bytes(result))
        except StopIteration:
            return
        except BaseException as error:
            results.put((None, error, 0))
            return
        results.put((result, None, result_bytes))

"""Workers that make results ahead: threads by default, processes for work that holds Python's lock.

A `Producer` gives the results of worker w as a generator. Both kinds keep each worker at most `prefetch` results
ahead of its consumer by credits: one credit is the right to make one result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeAlias

from penstock.errors import PenstockError

_CLOSE_WAIT_S = 1.0

WorkerKind: TypeAlias = Literal["threads", "processes"]

Handed: TypeAlias = tuple[Any, dict[str, float], Any]
"""A batch; stage → seconds spent on it in the workers; and where the rank's lanes are after it, or None."""

Wait = Callable[[float], object]
"""Sleeps for so many seconds; a true result means that nothing is wanted any more."""


class Producer(Protocol):
    """Makes the results of one worker, in order; picklable where it is to run in a process."""

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Any]:
        """The results of worker number `worker`."""
        ...


class Workers(Protocol):
    """Running workers."""

    def take(self, worker: int, /) -> Any:
        """The next result of that worker; raises in its place what making it raised."""
        ...

    def ready(self) -> int:
        """Results that wait to be taken, about."""
        ...

    def close(self) -> None:
        """Stop and let go of everything; a second call does nothing."""
        ...


class WorkersFactory(Protocol):
    """Starts workers."""

    def __call__(self, producer: Producer, workers: int, /) -> Workers:
        """So many workers, at work."""
        ...


class NoWorkers:
    """The calling thread itself makes what it takes."""

    def __init__(self, producer: Producer) -> None:
        self._made = producer(0, time.sleep)

    def take(self, _worker: int, /) -> Any:
        """The next result."""
        return next(self._made)

    def ready(self) -> int:
        """Nothing is made ahead."""
        return 0

    def close(self) -> None:
        """Let go of what is half made."""
        self._made.close()


class ThreadWorkers:
    """Threads. They hold no reference to this object: dropping it ends them.

    Args:
        producer: makes the results.
        workers: threads, 1 or more.
        prefetch: results that each of them may be ahead, 1 or more.
        timeout_seconds: how long to wait for a result; without end where it is None.
    """

    def __init__(self, producer: Producer, workers: int, prefetch: int, timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._stopped = threading.Event()
        # Two plain queues a worker cost less than one lock for all.
        self._credits: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(workers)]
        self._results: list[SimpleQueue[tuple[Any, BaseException | None]]] = [SimpleQueue() for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        for worker in range(workers):
            results = producer(worker, self._stopped.wait)
            channel = (self._credits[worker], self._results[worker], self._stopped)
            for _ in range(prefetch):
                self._credits[worker].put(True)
            # Daemons, so that an iterator that nobody closed can't keep the interpreter from ending.
            name = f"penstock-load-{worker}"
            thread = threading.Thread(target=_work, args=(results, *channel), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, worker: int, /) -> Any:
        """The next result of that worker."""
        try:
            result, error = self._results[worker].get(timeout=self._timeout_seconds)
        except Empty:
            raise too_slow(f"thread {worker}", self._timeout_seconds) from None
        if error is not None:
            raise error
        self._credits[worker].put(True)
        return result

    def ready(self) -> int:
        """Results that wait to be taken."""
        return sum(results.qsize() for results in self._results)

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


def too_slow(who: str, timeout_seconds: float | None) -> PenstockError:
    """The error for a worker that gives nothing in time."""
    return PenstockError(
        f"the loader's {who} gave nothing in time: a read hangs, or a function never ends",
        found=f"no batch for {timeout_seconds:g} s",
        hint="Look at the store and at the functions of the stream; raise timeout_seconds where batches take that long",
    )


def _work(
    made: Iterator[Any],
    credits: SimpleQueue[bool],
    results: SimpleQueue[tuple[Any, BaseException | None]],
    stopped: threading.Event,
) -> None:
    while credits.get() and not stopped.is_set():
        try:
            results.put((next(made), None))
        except StopIteration:
            return
        except BaseException as error:
            results.put((None, error))
            return

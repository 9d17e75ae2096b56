"""Workers that prefetch results: threads by default, processes for work that holds Python's lock; and flow control.

A `Producer` yields the results of worker w. Both kinds keep each worker at most `prefetch` results
ahead of its consumer, more if they are small: see `CreditWindow`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import Empty, SimpleQueue
from sys import getsizeof
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._threads import Worker, has_ended
from penstock.errors import PenstockError

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


AHEAD_BYTES = 1 << 18
"""Small results may be produced ahead up to this many bytes."""

LEAST_BYTES = 1 << 12
"""Minimum number of bytes that each result counts as."""


class CreditWindow:
    """Counter of produced and consumed results that blocks the producer while it is too far ahead.

    The producer may be `prefetch` results ahead. It may be further ahead while the results take less than
    `AHEAD_BYTES`, once the first one is consumed. Waking a thread costs as much as a small batch, so a blocked producer
    wakes only when half of these bytes are consumed.

    One thread produces, another consumes.
    """

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        # Each has one writer, so no lock is needed.
        self._produced = self._produced_bytes = 0
        self._consumed = self._consumed_bytes = 0
        self._asleep = self._stopped = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> bool:
        """Block until another result may be produced; return False once the window is closed."""
        while not self._stopped:
            if self._has_room(AHEAD_BYTES):
                return True
            self._asleep = True
            # Checked again: a result consumed a moment ago woke nobody, because the producer wasn't waiting yet.
            if not self._has_room(AHEAD_BYTES // 2) and not self._stopped:
                self._wakes.get()
            self._asleep = False
        return False

    def sleep(self, seconds: float) -> bool:
        """Block for `seconds`, or until the window is closed; return whether it is."""
        end_s = time.monotonic() + seconds
        while not self._stopped and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=left_s)
        return self._stopped

    @property
    def num_produced(self) -> int:
        """Number of results produced so far."""
        return self._produced

    def produced(self, result_bytes: int) -> int:
        """Count a produced result; return the bytes that it counts as."""
        counted_bytes = max(result_bytes, LEAST_BYTES)
        self._produced += 1
        self._produced_bytes += counted_bytes
        return counted_bytes

    def consumed(self, results: int, result_bytes: int) -> None:
        """Count consumed results, and wake the producer once it has credits again."""
        self._consumed += results
        self._consumed_bytes += result_bytes
        if self._asleep and self._has_room(AHEAD_BYTES // 2):
            self._asleep = False
            self._wakes.put(None)

    def stop(self) -> None:
        """Close the window: a blocked producer wakes and ends."""
        self._stopped = True
        self._wakes.put(None)

    def _has_room(self, limit_bytes: int) -> bool:
        if self._produced - self._consumed < self._prefetch:
            return True
        # Not before the first is consumed: its consumer would wait for the GIL, too.
        return bool(self._consumed) and self._produced_bytes - self._consumed_bytes < limit_bytes


LARGE = 1 << 40
"""Size in bytes of objects that can't be measured: more than any limit."""

_OBJECT_BYTES = 64
_MOST_ITEMS, _MOST_DEEP = 1 << 10, 5
_NUMBERS: frozenset[type] = frozenset({int, float, bool, type(None)})
_TEXTS: frozenset[type] = frozenset({str, bytes})


def size_bytes(value: Any) -> int:
    """Return roughly how much memory a result holds, in bytes; `LARGE` if unknown.

    Only arrays, tensors and texts are measured. Fields of dataclasses like `__key__` and `__sources__` don't count.
    """
    try:
        return _size(value, 0)
    except Exception:  # an object may raise anything when it is measured; the batch is still valid
        return LARGE


def _size(value: Any, deep: int) -> int:
    kind = type(value)
    if kind is list or kind is tuple:
        return _of_items(value, deep)
    if kind is dict:
        return _of_items(list(value.values()), deep)
    if kind in _TEXTS:
        return getsizeof(value)
    if kind in _NUMBERS:
        return _OBJECT_BYTES
    if isinstance(value, np.ndarray):
        return _of_array(cast(NDArray[Any], value))
    if isinstance(value, np.generic):
        return _OBJECT_BYTES
    if isinstance(value, dict):
        return _of_items(list(cast("dict[Any, Any]", value).values()), deep)
    storage = getattr(value, "untyped_storage", None)
    if storage is not None:  # of a torch tensor: a view keeps all of it alive
        return _OBJECT_BYTES + storage().nbytes()
    names = _names(kind)
    return LARGE if names is None else _of_items([getattr(value, name) for name in names], deep)


def _of_array(array: NDArray[Any]) -> int:
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return LARGE
    base: Any = array.base
    if base is None:
        return _OBJECT_BYTES + array.nbytes
    # A view keeps its whole base alive.
    return _OBJECT_BYTES + base.nbytes if isinstance(base, np.ndarray) and base.base is None else LARGE


def _of_items(items: Any, deep: int) -> int:
    if deep == _MOST_DEEP or len(items) > _MOST_ITEMS:
        return LARGE
    kinds = set(map(type, items))
    if kinds <= _TEXTS:
        return sum(map(getsizeof, items))
    if kinds <= _NUMBERS:
        return _OBJECT_BYTES * len(items)
    total = 0
    for one in items:
        total += _size(one, deep + 1)
    return total


@functools.lru_cache
def _names(kind: Any) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(one.name for one in dataclasses.fields(kind) if not one.name.startswith("__"))

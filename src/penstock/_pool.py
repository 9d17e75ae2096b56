"""Threads for reads, which are stopped with the process, and threads for writes, which finish first.

`concurrent.futures` runs all submitted calls before a script ends, however slow a store is: good for writes. A `Pool`
drops calls that weren't started, and waits for running ones as `_ending` describes.

`Collecting` and `report` measure the time of stages by thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

from penstock._ending import Worker, has_ended, only_exit_handlers_run

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


# Other libraries import it, and Python rejects that once the main program is over, while their threads may still read.
with contextlib.suppress(RuntimeError):
    importlib.import_module("concurrent.futures.thread")

T = TypeVar("T")
R = TypeVar("R")

_Tasks: TypeAlias = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool for writes: submitted calls finish before the process ends.

    Imported here, so that modules which also read can be imported when the main program is over.
    """
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads)


class Pool:
    """Pool of threads, which are started when there is work for them.

    Deleting it ends its threads after their submitted calls. In a forked process it starts new ones.

    Args:
        threads: number of threads, at least 1.
        name: name of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._begin()

    def submit(self, fn: Callable[..., R], /, *args: Any) -> Future[R]:
        """Return the future of `fn(*args)`. When the process ends, it is computed immediately in this thread."""
        if self._pid != os.getpid():
            self._begin()
        future: Future[R] = Future()
        task = functools.partial(fn, *args)
        if only_exit_handlers_run():
            _do(future, task)
            return future
        self._tasks.put((future, task))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            run = functools.partial(_work, self._tasks, self._idle)
            name = f"{self._name}-{len(self._threads)}"
            worker = Worker(run, name, stop=functools.partial(_drop, self._tasks), doing=lambda: "a read")
            self._threads.append(worker)
            worker.start()
        return future

    def map(self, fn: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Yield `fn` of each item, in order; all are submitted at once, and dropped if the caller stops iterating."""
        futures = [self.submit(fn, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Drop calls that weren't started, and wait for the others."""
        if self._pid != os.getpid():
            return
        _drop(self._tasks)
        for thread in self._threads:
            # The garbage collector may run this in one of the threads; at the end of the process they were joined.
            if thread is not threading.current_thread() and not has_ended():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._tasks.put(None)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._tasks: _Tasks = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[Worker] = []


def _work(tasks: _Tasks, idle: threading.Semaphore) -> None:
    shield = cast(Worker, threading.current_thread()).shield
    while True:
        shield.acquire()  # if killed between taking a call and running it, that call would never finish
        try:
            given = tasks.get_nowait()
        except Empty:
            idle.release()
            given = tasks.get()
        if given is None:
            tasks.put(None)  # the other threads have to end, too
            return shield.release()
        _do(*given, shield.release)
        del given  # the next call may take long to arrive


def _do(future: Future[Any], task: Callable[[], Any], begin: Callable[[], object] = lambda: None) -> None:
    wanted = future.set_running_or_notify_cancel()
    try:
        begin()
        if wanted:
            future.set_result(task())
    except BaseException as error:
        if wanted:
            future.set_exception(error)


def _drop(tasks: _Tasks) -> None:
    """Stop the threads, and cancel the calls that weren't started, so that their callers get an error."""
    ends = 1
    with contextlib.suppress(Empty):
        while True:
            given = tasks.get_nowait()
            if given is None:
                ends += 1  # of another call, for another thread
            else:
                given[0].cancel()
    for _ in range(ends):
        tasks.put(None)


_local = threading.local()


class Collecting:
    """Context manager that adds up the times reported on this thread, by stage: `with Collecting(seconds)`."""

    __slots__ = ("_outer", "_seconds")

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._outer: dict[str, float] | None = None

    def __enter__(self) -> None:
        self._outer, _local.seconds = getattr(_local, "seconds", None), self._seconds

    def __exit__(self, *_: object) -> None:
        _local.seconds = self._outer


def report(stage: str, seconds: float) -> None:
    """Add `seconds` to a stage, if times are collected on this thread."""
    found: dict[str, float] | None = getattr(_local, "seconds", None)
    if found is not None:
        found[stage] = found.get(stage, 0.0) + seconds

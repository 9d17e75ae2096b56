"""Threads that end in an orderly way with the process: those of reads are stopped, those of writes finish first.

A daemon thread that returns from foreign code (torch, a decoder, a remote store) during the shutdown of the interpreter
kills the whole process: "terminate called without an active exception", exit status 134. Any other thread keeps a
finished script alive. So the threads of this package are daemons that are stopped before the shutdown, and joined: for
as long as their current sample takes, at most 10 s.

The program's own non-daemon threads come first: a script isn't over before they are, and they may read. After the
timeout, one line names the remaining threads, and the process ends without them. Otherwise Python's shutdown is
unchanged: threads of the program are joined, its exit handlers run, its output is flushed. Then, as soon as the system
knows the exit status, which Python doesn't expose, the process exits before running threads lose their data. An exit
handler that then waits for more than 10 s, mostly for a lock of such a thread, is interrupted and named, too.

`concurrent.futures` runs all submitted calls before a script ends, however slow a store is: good for writes. A `Pool`
drops calls that weren't started, and waits for running ones.

`Collecting` and `report` measure the time of stages by thread.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, cast
from weakref import WeakSet

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_WAIT_S = 10.0

_ended = threading.Event()
_opened: WeakSet[_Closes] = WeakSet()


def sleep(seconds: float) -> bool:
    """Sleep for some seconds, or until the process ends; return true if it ends."""
    return _ended.wait(seconds)


def has_ended() -> bool:
    """Return whether the process ends: threads were stopped and joined."""
    _prepare()
    return _ended.is_set()


def only_exit_handlers_run() -> bool:
    """Return whether the process ends: exit handlers then read without threads.

    Raises:
        SystemExit: in a daemon thread of the program, which would still run during the shutdown.
    """
    if not has_ended():
        return False
    thread = threading.current_thread()
    if thread.daemon and thread is not threading.main_thread():
        raise _Ended
    return True


def close_at_end(opened: _Closes) -> None:
    """Close `opened` when the process ends, if it is still in use then."""
    _prepare()
    _opened.add(opened)


def when_dropped(close: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a `__del__` that calls `close`, except during the shutdown: everything is closed then.

    Objects that the program keeps until the end (in a signal handler, an `excepthook`) are deleted that late.
    """
    is_over = sys.is_finalizing

    def drop(self: Any) -> None:
        if not is_over():
            close(self)

    return drop


class _Closes(Protocol):
    def close(self) -> None: ...


class Worker(threading.Thread):
    """Daemon thread that is stopped and joined when the process ends.

    Args:
        run: function to run.
        name: name of the thread.
        stop: makes `run` return soon; it must not wait.
        doing: describes its current work, for a message: such as "batch 7".
    """

    def __init__(
        self, run: Callable[[], object], name: str, *, stop: Callable[[], object], doing: Callable[[], str]
    ) -> None:
        _prepare()
        # Held while `_Ended` must not be raised in the thread: one that dies while it starts is waited for forever.
        self.shield = threading.Lock()
        self.shield.acquire()
        super().__init__(target=_run, args=(run, self.shield), name=name, daemon=True)
        self.stop = stop
        self.doing = doing

    def start(self) -> None:
        starter = threading.current_thread()
        with starter.shield if isinstance(starter, Worker) else contextlib.nullcontext():
            super().start()


def _run(run: Callable[[], object], shield: threading.Lock) -> None:
    shield.release()
    run()


class _Ended(SystemExit):
    """Exception that ends a thread or an exit handler."""


@functools.cache
def _prepare() -> None:
    """Register the end of the workers with the end of the process."""
    register: Callable[[Callable[[], object]], object] | None = getattr(threading, "_register_atexit", None)
    hooks: list[Any] | None = getattr(threading, "_threading_atexits", None)
    if register is None or hooks is None:
        atexit.register(_end)
        return
    try:
        register(_end)
    except RuntimeError:  # the main program is over
        if threading.current_thread() is threading.main_thread():
            _ended.set()
        else:
            atexit.register(_end)
    else:
        # The first handler runs last: after `concurrent.futures` has joined its threads, which may wait for ours.
        hooks.insert(0, hooks.pop())


def _end() -> None:
    """Stop all workers, and end the process in an orderly way."""
    with contextlib.suppress(KeyboardInterrupt):
        _wait_for_the_program()
    _ended.set()
    _hush()
    stopped: set[Worker] = set()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C skips the wait
        for opened in list(_opened):
            opened.close()
        end_s = time.monotonic() + _WAIT_S
        while new := _workers() - stopped:  # a worker may have been starting another one
            stopped |= new
            for worker in new:
                worker.stop()
                _raise_in(worker, end_s)
            for worker in new:
                _join(worker, end_s)
    left = _workers()
    if left:
        _say(f"penstock: {'; '.join(map(_where, left))}: not finished after {_WAIT_S:g} s; exiting without it")
        _leave_behind()


def _wait_for_the_program() -> None:
    """Wait for the program's own threads, as Python would do next: their reads are wanted."""
    ends_it = (threading.current_thread(), threading.main_thread())
    while own := [one for one in threading.enumerate() if _goes_on(one) and not one.daemon and one not in ends_it]:
        for thread in own:
            _join(thread)


def _workers() -> set[Worker]:
    return {one for one in threading.enumerate() if isinstance(one, Worker) and _goes_on(one)}


def _goes_on(thread: threading.Thread) -> bool:
    # A starting thread has no number yet. A thread that was killed in its last step is still in Python's list; up to
    # Python 3.12, so is one with an interrupted `join`: it runs, but Python doesn't wait for it any more.
    return thread.ident is None or thread.is_alive()


def _join(thread: threading.Thread, end_s: float | None = None) -> None:
    while thread in threading.enumerate():
        try:
            return thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
        except RuntimeError:  # another thread is just starting it: it can't be joined yet
            if end_s is not None and time.monotonic() > end_s:
                return
            time.sleep(0.001)


def _raise_in(worker: Worker, end_s: float) -> None:
    """End a thread between two steps of its Python code, also inside functions of the program.

    A thread that is starting, or is starting another one, is waited for until `end_s`.
    """
    if worker.shield.acquire(timeout=max(0.0, end_s - time.monotonic())):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(_Ended))
        worker.shield.release()


def _hush() -> None:
    """Suppress reports of `_Ended`, independent of where it was raised."""
    report, report_unraisable = threading.excepthook, sys.unraisablehook

    def quiet(raised: Any, /) -> None:
        if raised.exc_type is not _Ended:
            report(raised)

    def quiet_unraisable(raised: Any, /) -> None:
        if raised.exc_type is not _Ended:
            report_unraisable(raised)

    threading.excepthook, sys.unraisablehook = quiet, quiet_unraisable


def _where(worker: Worker) -> str:
    """Return the name of a worker, its work, and the line of Python code that it is in."""
    frame = sys._current_frames().get(worker.ident or 0)  # pyright: ignore[reportPrivateUsage]
    place = "" if frame is None else f", in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    return f"thread {worker.name} at {worker.doing()}{place}"


def _say(text: str) -> None:
    # Without their methods: an abandoned thread may hold a lock of theirs, or of the logging.
    with contextlib.suppress(Exception):
        os.write(sys.stderr.fileno(), (text + "\n").encode())


def _leave_behind() -> None:
    """End the process with its own status although threads are running."""
    libc = ctypes.CDLL(None)
    # The handlers of C and C++ destroy objects of the threads; this one runs first, and gets the status.
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
    flushing = threading.Thread(target=libc.fflush, args=(None,), daemon=True)  # they would have flushed that
    flushing.start()
    # A thread that returns now ends in C++: it must not kill the process.
    with contextlib.suppress(OSError, AttributeError):
        cpp = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD)
        cpp._ZSt13set_terminatePFvvE(ctypes.cast(libc.pause, ctypes.c_void_p))
    flushing.join(1.0)
    _watch_exit_handlers()


def _watch_exit_handlers() -> None:
    """Interrupt exit handlers that exceed the timeout; each is still started."""
    main = threading.current_thread()
    begun = threading.Event()

    def watch() -> None:
        begun.wait()
        time.sleep(_WAIT_S)
        while True:  # ends with the interpreter
            signal.pthread_kill(main.ident or 0, signal.SIGALRM)
            time.sleep(1.0)

    def interrupt(_number: int, frame: Any) -> None:
        if frame is not None:
            code = frame.f_code
            _say(f"penstock: an exit handler did not finish after {_WAIT_S:g} s, in {code.co_qualname} "
                 f"({code.co_filename}:{frame.f_lineno}); skipping it")  # fmt: skip
            raise _Ended

    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGALRM, interrupt)
        threading.Thread(target=watch, daemon=True).start()
        atexit.register(begun.set)  # runs before all handlers that are already registered


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

    def map(self, fn: Callable[[T], R], items: Iterable[T], /, *, ahead: int | None = None) -> Iterator[R]:
        """Yield `fn` of each item, in order.

        All are submitted at once, or up to `ahead` before their results are needed. They are dropped if the caller
        stops iterating.
        """
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(self.submit(fn, item))
                if ahead is not None and len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
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

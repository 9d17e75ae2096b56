"""Threads that end with the process, in good order.

A daemon thread that comes back from foreign code (torch, a decoder, a remote store) while the interpreter is being
taken down ends the whole process with it: "terminate called without an active exception", exit status 134. Any other
thread keeps a finished script alive for as long as it likes. So the threads of this package are daemons that are
stopped before the interpreter goes, and waited for: as long as the sample takes that they are at, at most 10 s.
The program's own threads that Python waits for come first: a script is not over before they are, and they may read.

After that one line names them, and the process ends without them. Python goes on as always: threads of the program are
joined, its exit handlers run, what it printed is flushed. Then, as soon as the system is told the exit status, which
Python keeps to itself, the process is gone, before anything is taken from under a thread that still runs. An exit
handler that waits for more than 10 s then, mostly for a lock of such a thread, is interrupted and named, too.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

_WAIT_S = 10.0

_ended = threading.Event()
_opened: WeakSet[_Closes] = WeakSet()


def sleep(seconds: float) -> bool:
    """Sleep for so many seconds, or until the process ends; true then, as nothing is wanted any more."""
    return _ended.wait(seconds)


def has_ended() -> bool:
    """Whether the process ends: threads are stopped, and were waited for."""
    _prepare()
    return _ended.is_set()


def only_exit_handlers_run() -> bool:
    """Whether the process ends: exit handlers read by themselves then, without threads.

    Raises:
        SystemExit: in a daemon thread of the program, which would be caught in the act when the interpreter goes.
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
    """A `__del__` that calls `close`, but once the interpreter goes: all is closed then, and modules are half gone.

    What the program keeps to its last moment (by a signal handler, an `excepthook`) is dropped that late.
    """
    is_over = sys.is_finalizing

    def drop(self: Any) -> None:
        if not is_over():
            close(self)

    return drop


class _Closes(Protocol):
    def close(self) -> None: ...


class Worker(threading.Thread):
    """A daemon thread that is stopped and waited for when the process ends.

    Args:
        run: what it does.
        name: of the thread.
        stop: has `run` return soon; it must not wait.
        doing: what it works on, for a message: such as "batch 7".
    """

    def __init__(
        self, run: Callable[[], object], name: str, *, stop: Callable[[], object], doing: Callable[[], str]
    ) -> None:
        _prepare()
        # Held while `_Ended` must not be raised in it: a thread that dies as it comes up is waited for without end.
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
    """Raised in a thread, or in an exit handler, that is to end."""


@functools.cache
def _prepare() -> None:
    """Have the workers end with the process."""
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
        # The first runs last: after `concurrent.futures` has waited for its threads, which may wait for ours.
        hooks.insert(0, hooks.pop())


def _end() -> None:
    """Stop all workers, and see that the process ends well."""
    with contextlib.suppress(KeyboardInterrupt):
        _wait_for_the_program()
    _ended.set()
    _hush()
    stopped: set[Worker] = set()
    with contextlib.suppress(KeyboardInterrupt):  # who is in a hurry need not wait
        for opened in list(_opened):
            opened.close()
        end_s = time.monotonic() + _WAIT_S
        while new := _workers() - stopped:  # one may have been about to start another
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
    """Wait for the program's own threads, as Python would do next: what they read is wanted."""
    ends_it = (threading.current_thread(), threading.main_thread())
    while own := [one for one in threading.enumerate() if _goes_on(one) and not one.daemon and one not in ends_it]:
        for thread in own:
            _join(thread)


def _workers() -> set[Worker]:
    return {one for one in threading.enumerate() if isinstance(one, Worker) and _goes_on(one)}


def _goes_on(thread: threading.Thread) -> bool:
    # One that is being started has no number yet. One that was ended in its last step is still in Python's list; so is,
    # up to Python 3.12, one whose `join` was interrupted: it runs, but Python waits for it no more.
    return thread.ident is None or thread.is_alive()


def _join(thread: threading.Thread, end_s: float | None = None) -> None:
    """Wait for a thread, at most until `end_s`."""
    while thread in threading.enumerate():
        try:
            return thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
        except RuntimeError:  # somebody is just starting it: it can't be joined yet
            if end_s is not None and time.monotonic() > end_s:
                return
            time.sleep(0.001)


def _raise_in(worker: Worker, end_s: float) -> None:
    """End a thread between two steps of its Python code, be they of the program's own functions.

    One that is being started, or is starting another, is waited for until `end_s`.
    """
    if worker.shield.acquire(timeout=max(0.0, end_s - time.monotonic())):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(_Ended))
        worker.shield.release()


def _hush() -> None:
    """Suppress reports of `_Ended`, wherever it was raised."""
    report, report_unraisable = threading.excepthook, sys.unraisablehook

    def quiet(raised: Any, /) -> None:
        if raised.exc_type is not _Ended:
            report(raised)

    def quiet_unraisable(raised: Any, /) -> None:
        if raised.exc_type is not _Ended:
            report_unraisable(raised)

    threading.excepthook, sys.unraisablehook = quiet, quiet_unraisable


def _where(worker: Worker) -> str:
    """The name of a worker, what it is at, and the line of Python code that it is in."""
    frame = sys._current_frames().get(worker.ident or 0)  # pyright: ignore[reportPrivateUsage]
    place = "" if frame is None else f", in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    return f"thread {worker.name} at {worker.doing()}{place}"


def _say(text: str) -> None:
    # Not by its methods: a thread that is left behind may hold a lock of theirs, or of the logging.
    with contextlib.suppress(Exception):
        os.write(sys.stderr.fileno(), (text + "\n").encode())


def _leave_behind() -> None:
    """Have the process end with its own status although threads are left."""
    libc = ctypes.CDLL(None)
    # The handlers of C and C++ take down what the threads use; this one runs first, and is told the status.
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
    flushing = threading.Thread(target=libc.fflush, args=(None,), daemon=True)  # they would have flushed that
    flushing.start()
    # A thread that comes back now ends in C++: it must not take the process with it.
    with contextlib.suppress(OSError, AttributeError):
        cpp = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD)
        cpp._ZSt13set_terminatePFvvE(ctypes.cast(libc.pause, ctypes.c_void_p))
    flushing.join(1.0)
    _watch_exit_handlers()


def _watch_exit_handlers() -> None:
    """Interrupt exit handlers that take longer than they may: each is still begun."""
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
        atexit.register(begun.set)  # runs before all that are registered already

"""Threads that end with the process, in good order.

A daemon thread that comes back from foreign code (torch, a decoder, a remote store) while the interpreter is being
taken down ends the whole process with it: "terminate called without an active exception", exit status 134. Any other
thread keeps a finished script alive for as long as it likes. So the threads of this package are daemons that are
stopped before the interpreter goes, and waited for: as long as the sample takes that they are at, at most 10 s.

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
import importlib
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
    return _ended.is_set()


def close_at_end(opened: _Closes) -> None:
    """Have something closed when the process ends, if it is still in use then."""
    _prepare()
    _opened.add(opened)


class _Closes(Protocol):
    def close(self) -> None: ...


class Worker(threading.Thread):
    """A daemon thread that is stopped and waited for when the process ends.

    Args:
        run: what it does.
        name: of the thread.
        stop: has `run` return soon; it must not wait.
        doing: what it is at, for a message: such as "batch 7".
    """

    def __init__(
        self, run: Callable[[], object], name: str, *, stop: Callable[[], object], doing: Callable[[], str]
    ) -> None:
        _prepare()
        super().__init__(target=run, name=name, daemon=True)
        self.stop = stop
        self.doing = doing


class _Ended(SystemExit):
    """Raised in a thread, or in an exit handler, that is to end."""


@functools.cache
def _prepare() -> None:
    """Have the workers end with the process."""
    # What is registered last runs first: before `concurrent.futures` waits for its threads, which may wait for ours.
    importlib.import_module("concurrent.futures.thread")
    register: Callable[[Callable[[], object]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(_end)


def _end() -> None:
    """Stop all workers, and see that the process ends well."""
    _ended.set()
    workers = [one for one in threading.enumerate() if isinstance(one, Worker)]
    _hush()
    with contextlib.suppress(KeyboardInterrupt):  # who is in a hurry need not wait
        for opened in list(_opened):
            opened.close()
        for worker in workers:
            worker.stop()
            _raise_in(worker)
        end_s = time.monotonic() + _WAIT_S
        for worker in workers:
            worker.join(max(0.0, end_s - time.monotonic()))
    left = [worker for worker in workers if worker.is_alive()]
    if left:
        _say(f"penstock: {'; '.join(map(_where, left))}: not done after {_WAIT_S:g} s, the process ends without it")
        _leave_behind()


def _raise_in(thread: threading.Thread) -> None:
    """End a thread between two steps of its Python code, be they of the program's own functions."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Ended))


def _hush() -> None:
    """Let nobody report `_Ended`, wherever it was raised."""
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
            _say(f"penstock: an exit handler is not done after {_WAIT_S:g} s, in {code.co_qualname} "
                 f"({code.co_filename}:{frame.f_lineno}): it is ended")  # fmt: skip
            raise _Ended

    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGALRM, interrupt)
        threading.Thread(target=watch, daemon=True).start()
        atexit.register(begun.set)  # runs before all that are registered already

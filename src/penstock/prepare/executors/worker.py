"""What runs in a worker process: take a task, do it, answer; leave when nobody is at the other end."""

from __future__ import annotations

import importlib
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from penstock.errors import PenstockError, PrepareError


def main(fd: int, preload: Sequence[str]) -> None:
    """Serve the socket `fd` until its other end closes.

    Args:
        fd: the inherited end of a socket pair.
        preload: modules to import before the first task.
    """
    # Ctrl-C goes to the whole group of processes: the one who started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    for module in preload:
        importlib.import_module(module)
    fn: Callable[[Any], Any] = _nothing
    while True:
        message = inbox.get()
        if message[0] == "function":
            fn = message[1]
        else:
            _answer(connection, fn, message[1], message[2])


def _receive(connection: Connection, inbox: queue.SimpleQueue[tuple[Any, ...]]) -> None:
    # A thread of its own: a closed connection must end the process while a task is under way.
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _answer(connection: Connection, fn: Callable[[Any], Any], place: int, task: Any) -> None:
    try:
        answer = (place, fn(task), None)
    except BaseException as error:
        answer = (place, None, _sendable(error))
    try:
        connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


def _sendable(error: BaseException) -> BaseException:
    """The error itself where it surely survives the way, else its words."""
    trace = "".join(traceback.format_exception(error))
    if not isinstance(error, PenstockError | OSError):
        error = PrepareError(f"a worker failed with {type(error).__name__}: {error}")
    error.add_note(f"In the worker:\n{trace}")
    return error


def _nothing(task: Any) -> Any:
    raise PrepareError(f"a task came before its function: {task!r}")

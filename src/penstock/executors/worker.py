"""The loop of a worker process: receives a task, runs it, sends the result; exits when the parent's end is closed."""

from __future__ import annotations

import importlib
import os
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from penstock.errors import PenstockError, PrepareError

Message = tuple[Any, ...]


def main(fds: Sequence[int], preload: Sequence[str]) -> None:
    """Run the workers: one process for each inherited socket, until its other end is closed.

    Args:
        fds: ends of socket pairs; this process serves the first.
        preload: modules to import before anything else.
    """
    for module in preload:
        importlib.import_module(module)
    connection = Connection(fds[0])
    serve = _Server()
    while (message := _receive(connection))[0] != "fork":
        serve(connection, message)
    connection = _fork(connection, fds[1:])
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(connection, inbox), daemon=True).start()
    while True:
        serve(connection, inbox.get())


class _Server:
    """Does what messages ask for."""

    def __init__(self) -> None:
        self._fn: Callable[[Any], Any] | None = None

    def __call__(self, connection: Connection, message: Message) -> None:
        if message[0] == "function":
            self._fn = message[1]
            return
        _, place, task = message
        try:
            if self._fn is None:
                raise PrepareError("a task came before its function")
            answer = (place, self._fn(task), None)
        except BaseException as error:
            answer = (place, None, _sendable(error))
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)


def _fork(connection: Connection, fds: Sequence[int]) -> Connection:
    """The connection that this process serves, after one fork for each further socket."""
    for place, fd in enumerate(fds):
        if os.fork() == 0:
            # No process may hold another's socket: its end would never be read.
            connection.close()
            for other in fds[place + 1 :]:
                os.close(other)
            return Connection(fd)
        os.close(fd)
    return connection


def _watch(connection: Connection, inbox: queue.SimpleQueue[Message]) -> None:
    # A thread of its own: a closed connection must end the process while a task is under way.
    while True:
        inbox.put(_receive(connection))


def _receive(connection: Connection) -> Message:
    try:
        return connection.recv()
    except (EOFError, OSError):
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _sendable(error: BaseException) -> BaseException:
    """The error itself where it surely survives the way, else its words."""
    trace = "".join(traceback.format_exception(error))
    if not isinstance(error, PenstockError | OSError):
        error = PrepareError(f"a worker failed with {type(error).__name__}: {error}")
    error.add_note(f"In the worker:\n{trace}")
    return error

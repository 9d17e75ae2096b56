"""Loop of a worker process: receives a task, runs it, sends the result; exits when the parent's end is closed."""

from __future__ import annotations

import importlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from penstock.errors import PrepareError
from penstock.executors.messages import Message, dump_error, dumps, loads, receive, send


def main(fds: Sequence[int], preload: Sequence[str]) -> None:
    """Run the workers: one process per inherited socket, until its other end is closed.

    Args:
        fds: ends of socket pairs; this process serves the first.
        preload: modules to import before anything else.
    """
    for fd in fds:
        os.set_inheritable(fd, False)
    connection = Connection(fds[0])
    try:
        for module in preload:
            importlib.import_module(module)
    except BaseException as error:
        _tell(connection, "broken", dump_error(error))
        os._exit(1)
    serve = _Server()
    _tell(connection, "ready")
    while (message := _receive(connection))[0] != "fork":
        serve(connection, message)
    connection = _fork(connection, fds[1:])
    # A child of a task must not inherit the socket: the parent would never notice this process's death.
    os.register_at_fork(after_in_child=connection.close)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(connection, inbox), daemon=True).start()
    while True:
        serve(connection, inbox.get())


def _tell(connection: Connection, word: str, data: bytes = b"") -> None:
    """Send a message; exit if the parent is gone."""
    try:
        send(connection, word, data)
    except OSError:
        os._exit(1)


class _Server:
    def __init__(self) -> None:
        self._fn: Callable[[Any], Any] | None = None
        self._why: Exception = PrepareError("a task came before its function")

    def __call__(self, connection: Connection, message: Message) -> None:
        word, data = message
        if word == "function":
            self._load(data)
            return
        try:
            if self._fn is None:
                raise self._why
            task = loads(data, "a task")
            del data, message
            word, answer = "done", dumps(self._fn(task), "the result of a task")
        except BaseException as error:
            word, answer = "failed", dump_error(error)
        _tell(connection, word, answer)

    def _load(self, data: bytes) -> None:
        self._fn = None
        try:
            self._fn = loads(data, "the function of tasks")
        except PrepareError as error:
            self._why = error


def _fork(connection: Connection, fds: Sequence[int]) -> Connection:
    """Return the connection of this process, after one fork per further socket."""
    for place, fd in enumerate(fds):
        if os.fork() == 0:
            # No process may hold another's socket: its end would never be noticed.
            connection.close()
            for other in fds[place + 1 :]:
                os.close(other)
            connection = Connection(fd)
            send(connection, "ready")
            return connection
        os.close(fd)
    return connection


def _watch(connection: Connection, inbox: queue.SimpleQueue[Message]) -> None:
    # In a separate thread: a closed connection must end the process even during a task.
    while True:
        inbox.put(_receive(connection))


def _receive(connection: Connection) -> Message:
    try:
        return receive(connection)
    except (EOFError, OSError):
        os._exit(1)

"""Pickled messages between a process and its own workers: a word, then its argument.

If a value can't be pickled or unpickled, the task fails, never the worker.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any

from penstock.errors import PrepareError
from penstock.executors.law import from_worker

Message = tuple[str, bytes]
"""A word, and its pickled argument, which may be empty."""


def send(connection: Connection, word: str, data: bytes = b"") -> None:
    """Send a message.

    Raises:
        OSError: the connection is closed.
    """
    connection.send(word)
    connection.send_bytes(data)


def receive(connection: Connection) -> Message:
    """Wait for a message.

    Raises:
        EOFError, OSError: the connection is closed.
    """
    return connection.recv(), connection.recv_bytes()


def dumps(value: Any, what: str) -> bytes:
    """Pickle a value; raise a `PrepareError` that names `what` if that fails."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise PrepareError(f"{what} can't be sent to another process", found=_words(error)) from error


def loads(data: bytes, what: str) -> Any:
    """Unpickle a value; raise a `PrepareError` that names `what` if that fails."""
    try:
        return pickle.loads(data)  # noqa: S301  between a process and its own workers
    except Exception as error:
        raise PrepareError(f"{what} can't be read in another process", found=_words(error)) from error


def dump_error(error: BaseException) -> bytes:
    """Pickle an error of a worker, or its text if the error can't be unpickled."""
    known = from_worker(error)
    try:
        data = pickle.dumps(known)
        pickle.loads(data)  # noqa: S301  made in the line above
    except Exception:
        plain = PrepareError(f"a worker failed with {type(error).__name__}: {error}")
        for note in known.__notes__:
            plain.add_note(note)
        data = pickle.dumps(plain)
    return data


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""What crosses between a process and its own workers, as pickles: a word, then what it is about.

What can't be pickled, or read on the other side, is an error of that task, and never the end of a worker.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any

from penstock.errors import PrepareError
from penstock.executors.law import from_worker

Message = tuple[str, bytes]
"""A word, and the pickle of what it is about; empty where it is about nothing."""


def send(connection: Connection, word: str, data: bytes = b"") -> None:
    """Send a message.

    Raises:
        OSError: the other side is gone.
    """
    connection.send(word)
    connection.send_bytes(data)


def receive(connection: Connection) -> Message:
    """Wait for a message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    return connection.recv(), connection.recv_bytes()


def dumps(value: Any, what: str) -> bytes:
    """The pickle of a value; raises `PrepareError`, which names `what`, where it has none."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise PrepareError(f"{what} can't be sent to another process", found=_words(error)) from error


def loads(data: bytes, what: str) -> Any:
    """The value of a pickle; raises `PrepareError`, which names `what`, where this process can't make it."""
    try:
        return pickle.loads(data)  # noqa: S301  between a process and its own workers
    except Exception as error:
        raise PrepareError(f"{what} can't be read in another process", found=_words(error)) from error


def dump_error(error: BaseException) -> bytes:
    """The pickle of an error as it leaves a worker: of the error where that survives the way, else of its words."""
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

"""Epoch counter of a dataset for all workers of a DataLoader, without named shared memory.

A dataset is copied to worker processes, by fork or by pickling, and the main process doesn't see their changes. So the
number of the next epoch, and a state to resume from, are in an unlinked temporary file that all copies keep open. The
file disappears with the last copy, even after a kill. Locks on it end with their process, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

from penstock._threads import when_dropped

_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Worker:
    """The DataLoader worker that iterates.

    Attributes:
        session: the same for all workers of one DataLoader iterator; None in a process that iterates by itself.
        number: number of the worker.
        count: number of workers.
        round: number of earlier iterations of this process in this session; persistent workers have several.
    """

    session: int | None = None
    number: int = 0
    count: int = 1
    round: int = 0


class Epochs:
    """Counts epochs, and keeps the state that the next one resumes from."""

    _file = -1

    def __init__(self) -> None:
        self._file = _new_file()
        self._write({"next": 0, "now": 0, "session": None, "started": [], "state": None, "used": None})

    def begin(self, worker: Worker) -> tuple[int, Mapping[str, Any] | None]:
        """Return the epoch that `worker` reads now, and the last state from which the run resumed.

        All workers of one iterator get the same answer, and the first one advances the epoch. A loaded state of an
        earlier epoch is ignored.
        """
        with self._locked() as record:
            session = None if worker.session is None else f"{worker.session}-{worker.round}"
            # A worker number that has already begun means a new iterator, because seeds may be equal.
            if session is None or session != record["session"] or worker.number in record["started"]:
                state, epoch = record["state"], record["next"]
                if state is not None and state["epoch"] >= epoch:
                    epoch, record["used"] = state["epoch"], state
                record.update(next=epoch + 1, session=session, started=[], now=epoch)
            record["started"].append(worker.number)
            return record["now"], record["used"]

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the original, once the next epoch begins."""
        with self._locked() as record:
            record["state"] = dict(state)

    def coming(self) -> int:
        """Return the epoch of the next iteration: that of a loaded state, or the one after the last epoch."""
        with self._locked() as record:
            return max(record["next"], record["state"]["epoch"] if record["state"] is not None else 0)

    def running(self) -> tuple[int, int, Mapping[str, Any] | None]:
        """Return the epoch (current or of a loaded state), the samples read before, and the state that applies."""
        with self._locked() as record:
            state, epoch = record["state"], record["next"] - 1
            if state is not None and state["epoch"] >= epoch:
                return state["epoch"], state["sample_in_epoch"], state
            return epoch, 0, record["used"]

    @contextmanager
    def _locked(self) -> Generator[dict[str, Any]]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            record = json.loads(os.pread(self._file, _MOST_BYTES, 0))
            before = json.dumps(record)
            yield record
            if json.dumps(record) != before:
                self._write(record)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # on its way into a worker: the same file
            return {"file": reduction.DupFd(self._file)}
        with self._locked() as record:
            return {"record": record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            self._file = state["file"].detach()
        else:
            self._file = _new_file()
            self._write(state["record"])

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    __del__ = when_dropped(_close)


def _new_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

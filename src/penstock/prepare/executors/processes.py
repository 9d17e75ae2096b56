"""The executor of processes: fresh interpreters that die with the one who started them.

Workers are not forked: a fork copies locks and thread pools in whatever state other threads hold them, and the
encoders' thread pools do not survive it. They do not import the caller's main module either, so no
`if __name__ == "__main__"` is needed. One socket pair a worker carries tasks and results. A worker that reads its end
leaves at once, in the middle of a task too: so no worker outlives this process, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.errors import ConfigError, PrepareError

T = TypeVar("T")
R = TypeVar("R")

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from penstock.prepare.executors.worker import main; main(int(sys.argv[1]), sys.argv[3:])"
)
_QUEUED = 2
"""Tasks that a worker holds: one under way, and one that spares it the wait for the next."""

_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class ProcessExecutor:
    """Does tasks in fresh processes; see `penstock.abc.Executor`.

    Functions, tasks and results cross by pickling, between this process and its own children only.
    Memory: the results that wait for an earlier one, and two tasks a worker.

    Args:
        workers: how many processes; they start at once.
        preload: modules that each imports before its first task.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_start(preload))
        except BaseException:
            self.close()
            raise

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order. The first tasks begin at once; one map at a time.

        After an error earlier tasks still end, and the error of the earliest task is raised, whoever was faster.

        Raises:
            PrepareError: a worker was killed.
        """
        run = _Run(self._workers, iter(tasks))
        for worker in self._workers:
            worker.send(("function", fn))
        run.feed()
        return run.results()

    def close(self) -> None:
        """End all workers at once, whatever they do."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.wait()
        self._workers.clear()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    held: int = 0
    """Tasks sent to it without an answer so far."""

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self.death() from None

    def death(self) -> PrepareError:
        """The error for a worker whose end of the connection is closed."""
        # It ends by itself now: its end closes in no other way.
        status = self.process.wait()
        how = f"status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-status).name
        memory = status == -signal.SIGKILL
        return PrepareError(
            "a worker process was killed" if status < 0 else "a worker process ended by itself",
            found=how,
            hint="Often the system is short of memory: use fewer workers" if memory else None,
        )


@dataclass(slots=True)
class _Run:
    """One map: what was handed out, and what came back."""

    workers: list[_Worker]
    tasks: Iterator[Any]
    handed: int = 0
    upcoming: list[Any] = field(default_factory=list[Any])
    done: dict[int, Any] = field(default_factory=dict[int, Any])
    failed: dict[int, BaseException] = field(default_factory=dict[int, BaseException])

    def feed(self) -> None:
        """Hand out tasks until every worker has enough, and get the next one ready while they work."""
        while not self.failed and (self.upcoming or self._fetch()):
            worker = min(self.workers, key=lambda one: one.held)
            if worker.held >= _QUEUED:
                break
            worker.held += 1
            worker.send(("task", self.handed, self.upcoming.pop()))
            self.handed += 1

    def results(self) -> Iterator[Any]:
        """Results in task order."""
        place = 0
        while True:
            while place in self.done:
                yield self.done.pop(place)
                place += 1
                self.feed()
            if place in self.failed:
                raise self.failed[place]
            self.feed()
            if not any(worker.held for worker in self.workers):
                return
            self._collect()

    def _fetch(self) -> bool:
        try:
            self.upcoming.append(next(self.tasks))
        except StopIteration:
            return False
        except Exception as error:
            # In its turn: an earlier task may fail too, and then that is the error.
            self.failed[self.handed] = error
            return False
        return True

    def _collect(self) -> None:
        ready = set(wait([worker.connection for worker in self.workers]))
        for worker in self.workers:
            if worker.connection not in ready:
                continue
            try:
                place, result, error = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                raise worker.death() from None
            worker.held -= 1
            if error is None:
                self.done[place] = result
            else:
                self.failed[place] = error


def _start(preload: Sequence[str]) -> _Worker:
    if not sys.executable:
        raise ConfigError("no Python interpreter is known to start workers with", hint='Use executor="inline"')
    ours, theirs = Pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path), *preload],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | _ONE_THREAD,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Worker(process, ours)

"""The executor of processes: they share what the first of them loaded, and die with the one who started them.

One fresh interpreter, the launcher, imports what is needed and becomes the first worker; the others are its forks.
This process itself is not forked: that would copy locks and thread pools in whatever state other threads hold them.
Nor is the caller's main module imported again, so no `if __name__ == "__main__"` is needed. The launcher has one thread
when it forks.

One socket pair a worker carries tasks and results. A worker that reads the end of its own leaves at once, in the middle
of a task too: so no worker outlives this process, however it ends. Workers are a session of their own, out of reach of
the terminal's Ctrl-C: who started them decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock._secrets import logger
from penstock.errors import ConfigError, PrepareError

T = TypeVar("T")
R = TypeVar("R")

_BOOT = (
    "import json, sys; sys.path[:], fds, preload = json.loads(sys.argv[1]); "
    "from penstock.executors.worker import main; main(fds, preload)"
)
_log = logger(__name__)

_QUEUED = 2
"""Tasks that a worker holds: one under way, and one that spares it the wait for the next."""

_PATIENCE_S = 10.0
"""After so long without an answer it is looked whether a worker is stopped."""

_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class ProcessExecutor:
    """Does tasks in other processes; see `penstock.abc.Executor`.

    Functions, tasks and results cross by pickling, between this process and its own workers only.
    Memory: the results that wait for an earlier one, and two tasks a worker.

    Args:
        workers: how many processes; the first starts at once.
        preload: modules that it imports before anything else.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        if not sys.executable:
            raise ConfigError("no Python interpreter is known to start workers with", hint='Use executor="inline"')
        pairs = [Pipe() for _ in range(workers)]
        self._workers = [_Worker(ours) for ours, _ in pairs]
        self._forked = False
        fds = [theirs.fileno() for _, theirs in pairs]
        try:
            self._launcher = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps([sys.path, fds, list(preload)])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
            )
        except BaseException:
            for worker in self._workers:
                worker.connection.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._stopped = _Stopped(self._launcher.pid)

    def begin(self, fn: Callable[[T], R], task: T) -> Callable[[], R]:
        """Start a task in the first worker, before the first map; call what is returned for its result.

        The other workers share what it loads.
        """
        worker = self._workers[0]

        def deliver() -> None:
            # Not in this thread: the first worker reads nothing before its imports are done.
            with contextlib.suppress(PrepareError):  # its death shows when the result is asked for
                worker.send(("function", fn))
                worker.send(("task", 0, task))

        delivery = threading.Thread(target=deliver, daemon=True)
        delivery.start()

        def result() -> R:
            delivery.join()
            while not worker.connection.poll(_PATIENCE_S):
                self._stopped.tell()
            self._stopped.told.clear()
            _, found, error = worker.receive()
            if error is not None:
                raise error
            return found

        return result

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order. The first tasks begin at once; one map at a time.

        After an error earlier tasks still end, and the error of the earliest task is raised, whoever was faster.

        Raises:
            PrepareError: a worker was killed.
        """
        if not self._forked:
            self._workers[0].send(("fork",))
            self._forked = True
        run = _Run(self._workers, iter(tasks), self._stopped)
        run.start(fn)
        return run.results()

    def close(self) -> None:
        """End all workers at once, whatever they do."""
        if not self._workers:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()
        for worker in self._workers:
            worker.wait_for_end()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class _Worker:
    connection: Connection
    held: int = 0
    """Tasks sent to it without an answer so far."""

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _killed() from None

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise _killed() from None

    def wait_for_end(self) -> None:
        """Return when the killed process can do no more: its end of the socket is closed then."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self.connection.recv_bytes()
        self.connection.close()


@dataclass(slots=True)
class _Stopped:
    """Workers that somebody stopped (SIGSTOP): they neither work nor end, and we wait for them."""

    group: int
    told: set[int] = field(default_factory=set[int])

    def tell(self) -> None:
        """Name those on the log that it did not name already."""
        stopped = set(_stopped_in(self.group))
        for pid in sorted(stopped - self.told):
            _log.warning("worker process %d is stopped, and the work waits for it: `kill -CONT %d`", pid, pid)
        self.told = stopped


def _stopped_in(group: int) -> Iterator[int]:
    """Processes of a process group that are stopped; none where the system does not tell."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
                if state in (b"T", b"t") and int(its_group) == group:
                    yield int(name)


@dataclass(slots=True)
class _Run:
    """One map: what was dispatched, and what came back."""

    workers: list[_Worker]
    tasks: Iterator[Any]
    stopped: _Stopped
    handed: int = 0
    upcoming: list[Any] = field(default_factory=list[Any])
    done: dict[int, Any] = field(default_factory=dict[int, Any])
    failed: dict[int, BaseException] = field(default_factory=dict[int, BaseException])

    def start(self, fn: Callable[[Any], Any]) -> None:
        """Tell the workers what to do, and dispatch the first tasks."""
        for worker in self.workers:
            worker.send(("function", fn))
        self._feed()

    def results(self) -> Iterator[Any]:
        """Results in task order."""
        place = 0
        while True:
            while place in self.done:
                yield self.done.pop(place)
                place += 1
                self._feed()
            if place in self.failed:
                raise self.failed[place]
            self._feed()
            if not any(worker.held for worker in self.workers):
                return
            self._collect()

    def _feed(self) -> None:
        """Hand out tasks until every worker has enough, and get the next one ready while they work."""
        while not self.failed and (self.upcoming or self._fetch()):
            worker = min(self.workers, key=lambda one: one.held)
            if worker.held >= _QUEUED:
                break
            worker.held += 1
            worker.send(("task", self.handed, self.upcoming.pop()))
            self.handed += 1

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
        waiting = [worker.connection for worker in self.workers if worker.held]
        while not (ready := set(wait(waiting, _PATIENCE_S))):
            self.stopped.tell()
        self.stopped.told.clear()
        for worker in self.workers:
            if worker.connection not in ready:
                continue
            place, result, error = worker.receive()
            worker.held -= 1
            if error is None:
                self.done[place] = result
            else:
                self.failed[place] = error


def _killed() -> PrepareError:
    return PrepareError(
        "a worker process was killed, or ended by itself",
        hint="The system kills processes when memory is short: use fewer workers (--workers)",
    )

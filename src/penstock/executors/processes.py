"""Executor of worker processes, which share the modules loaded by the first one, and end with their parent.

One fresh interpreter, the launcher, imports the modules and becomes the first worker; the others are its forks.
This process itself isn't forked: that would copy locks and thread pools in any state. Nor is the caller's main module
imported again, so no `if __name__ == "__main__"` is needed. The launcher has one thread when it forks.

One socket pair per worker carries tasks and results. A worker exits as soon as its socket is closed, even in the middle
of a task: no worker outlives this process, however it ends. Workers have their own session, which isn't reached by
Ctrl-C in the terminal: the parent decides.

A dead worker is replaced by a fresh interpreter as soon as there is work for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock._secrets import logger
from penstock.errors import ConfigError, PrepareError
from penstock.executors.law import MOST_DEATHS, Books, described, never_started, set_aside
from penstock.executors.messages import dumps, loads, receive, send

T = TypeVar("T")
R = TypeVar("R")

_BOOT = (
    "import json, sys; sys.path[:], fds, preload = json.loads(sys.argv[1]); "
    "from penstock.executors.worker import main; main(fds, preload)"
)
_log = logger(__name__)

_QUEUED = 2
"""Tasks per worker: a running one, and one that saves it the wait for the next."""

_PATIENCE_S = 10.0
"""Seconds without a result after which to check for a stopped worker."""

_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class ProcessExecutor:
    """Executor that runs tasks in other processes; see `penstock.abc.Executor`.

    Functions, tasks and results are pickled between this process and its own workers. Memory: up to 1,024 results that
    wait for an earlier one, and two tasks per worker.

    Args:
        workers: number of processes; the first one starts at once.
        preload: modules that it imports before anything else.

    Examples:
        >>> from penstock.executors import ProcessExecutor
        >>> with ProcessExecutor(workers=1) as executor:
        ...     list(executor.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        if not sys.executable:
            raise ConfigError("no Python interpreter to start workers with", hint='Use executor="inline"')
        self._crew = _Crew(list(preload))
        self._workers = [_Worker() for _ in range(workers)]
        self._crew.start(self._workers)
        self._forked = False

    def begin(self, fn: Callable[[T], R], task: T) -> Callable[[], R]:
        """Start a task in the first worker, before the first map.

        Call the returned function for its result.

        The other workers share the modules it loads.
        """
        worker = self._workers[0]
        function, data = dumps(fn, "the function of tasks"), dumps(task, "a task")
        delivery = threading.Thread(target=_deliver, args=(worker.connection, function, data), daemon=True)
        delivery.start()

        def result() -> R:
            deaths = 0
            while True:
                delivery.join()
                answer = self._wait_for(worker)
                if answer is not None:
                    return answer()
                deaths += worker.is_ready
                if deaths >= MOST_DEATHS:
                    raise set_aside([f"the first task ({described(task)})"])
                self._crew.restart(worker)
                _deliver(worker.connection, function, data)

        return result

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield `fn(task)` for each task, in order. The first tasks start at once. Only one map at a time.

        If a task raises an error, earlier tasks still finish, and the error of the earliest failing task is raised,
        whichever worker was faster.

        Raises:
            PrepareError: a task killed three workers (the others are finished first), or workers don't start.
        """
        if not self._forked:
            self._crew.fork(self._workers[0])
            self._forked = True
        run = _Run(self._workers, self._crew, dumps(fn, "the function of tasks"), Books(iter(tasks)))
        run.start()
        return run.results()

    def close(self) -> None:
        """End all workers at once, even if they are busy."""
        self._crew.end()
        for worker in self._workers:
            worker.wait_for_end()
        self._workers.clear()

    def _wait_for(self, worker: _Worker) -> Callable[[], Any] | None:
        """Return a function for the result of a worker's only task; None if the worker is dead."""
        try:
            while True:
                while not worker.connection.poll(_PATIENCE_S):
                    self._crew.stopped.report()
                self._crew.stopped.reported.clear()
                word, data = receive(worker.connection)
                if word in ("done", "failed"):
                    return lambda: _value_of(word, data)
                worker.hears(word, data)
        except (EOFError, OSError):
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class _Worker:
    """Slot of a worker, filled by one process after another.

    Attributes:
        connection: connection to the process; closed without a process.
        held: tasks sent without a result so far, with their numbers; None if nobody waits for the result.
        is_ready: whether it has started to serve.
        bad_starts: consecutive processes that never did.
    """

    connection: Connection = field(init=False)
    held: deque[tuple[int, Any] | None] = field(default_factory=deque[tuple[int, Any] | None])
    is_ready: bool = False
    bad_starts: int = 0
    pickled: bytes | None = None

    @property
    def is_gone(self) -> bool:
        return self.connection.closed

    def hears(self, word: str, data: bytes) -> None:
        """Handle a message about the process itself; raise its start error."""
        if word == "broken":
            raise loads(data, "why a worker did not start")
        self.is_ready, self.bad_starts = True, 0

    def wait_for_end(self) -> None:
        """Return when the killed process has ended: its end of the socket is closed then."""
        if self.is_gone:
            return
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll(_PATIENCE_S):
                self.connection.recv_bytes()
        self.connection.close()


class _Crew:
    def __init__(self, preload: list[str]) -> None:
        self._preload = preload
        self._started: list[subprocess.Popen[bytes]] = []
        self.stopped = _Stopped([])

    def start(self, workers: Sequence[_Worker]) -> None:
        """Start an interpreter that serves the first of these workers and forks for the others."""
        pairs = [Pipe() for _ in workers]
        fds = [theirs.fileno() for _, theirs in pairs]
        try:
            launcher = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps([sys.path, fds, self._preload])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
            )
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._started.append(launcher)
        self.stopped.groups.append(launcher.pid)
        for worker, (ours, _) in zip(workers, pairs, strict=True):
            worker.connection, worker.is_ready, worker.pickled = ours, False, None

    def fork(self, first: _Worker) -> None:
        with contextlib.suppress(OSError):  # it is dead: noticed when its result is awaited
            send(first.connection, "fork")

    def restart(self, worker: _Worker) -> None:
        """Replace a dead process.

        Raises:
            PrepareError: the third process in a row never started to serve.
        """
        worker.bad_starts += not worker.is_ready
        if worker.bad_starts >= MOST_DEATHS:
            raise never_started()
        worker.connection.close()
        self.start([worker])

    def end(self) -> None:
        """Kill all processes, including forked workers."""
        for one in self._started:
            # Not yet waited for, so the pid is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
        for one in self._started:
            one.wait()
        self._started.clear()


def _deliver(connection: Connection, function: bytes, data: bytes) -> None:
    # Not in the caller's thread: the first worker reads nothing before its imports are done.
    with contextlib.suppress(OSError):  # its death is noticed when the result is requested
        send(connection, "function", function)
        send(connection, "task", data)


def _value_of(word: str, data: bytes) -> Any:
    if word == "failed":
        raise loads(data, "the error of a task")
    return loads(data, "the result of a task")


@dataclass(slots=True)
class _Stopped:
    """Detection of workers that were stopped from outside (SIGSTOP), which blocks the map."""

    groups: list[int]
    reported: set[int] = field(default_factory=set[int])

    def report(self) -> None:
        stopped = set(_stopped_in(self.groups))
        for pid in sorted(stopped - self.reported):
            _log.warning("worker process %d is stopped and the job waits for it: `kill -CONT %d`", pid, pid)
        self.reported = stopped


def _stopped_in(groups: Sequence[int]) -> Iterator[int]:
    """Yield the stopped processes of process groups; none if the system doesn't list them."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
                if state in (b"T", b"t") and int(its_group) in groups:
                    yield int(name)


@dataclass(slots=True)
class _Run:
    workers: list[_Worker]
    crew: _Crew
    function: bytes
    books: Books

    def start(self) -> None:
        for worker in self.workers:
            worker.held = deque([None] * len(worker.held))  # of a map that the caller abandoned
        self._feed()

    def results(self) -> Iterator[Any]:
        while True:
            for result in self.books.due():
                yield result
                self._feed()
            self._feed()
            if not any(worker.held for worker in self.workers):
                if self.books.is_due():
                    continue
                self.books.end()
                return
            self._collect()

    def _feed(self) -> None:
        """Dispatch tasks until every worker has enough; the next one is prepared meanwhile."""
        while self.books.has_task():
            worker = min(self.workers, key=lambda one: len(one.held))
            if len(worker.held) >= _QUEUED:
                break
            place, task = self.books.next_task()
            try:
                data = dumps(task, "a task")
            except PrepareError as error:
                self.books.failed(place, error)
                continue
            worker.held.append((place, task))
            self._send(worker, data)

    def _send(self, worker: _Worker, data: bytes) -> None:
        """Send a task; a dead worker is noticed when its result is awaited."""
        if worker.is_gone:
            self.crew.restart(worker)
            self.crew.fork(worker)
        with contextlib.suppress(OSError):
            if worker.pickled is not self.function:
                send(worker.connection, "function", self.function)
                worker.pickled = self.function
            send(worker.connection, "task", data)

    def _collect(self) -> None:
        waiting = [worker.connection for worker in self.workers if worker.held]
        while not (ready := set(wait(waiting, _PATIENCE_S))):
            self.crew.stopped.report()
        self.crew.stopped.reported.clear()
        for worker in self.workers:
            if not worker.is_gone and worker.connection in ready:
                try:
                    word, data = receive(worker.connection)
                except (EOFError, OSError):
                    self._bury(worker)
                else:
                    self._hear(worker, word, data)

    def _hear(self, worker: _Worker, word: str, data: bytes) -> None:
        if word not in ("done", "failed"):
            worker.hears(word, data)
            return
        held = worker.held.popleft()
        for one in self.workers:
            one.bad_starts = 0  # workers can start: this one was killed
        if held is None:
            return
        try:
            self.books.done(held[0], _value_of(word, data))
        except Exception as error:
            self.books.failed(held[0], error)

    def _bury(self, worker: _Worker) -> None:
        """Count a death for the running task, unless the worker never served; the queued task wasn't started."""
        worker.connection.close()
        under_way = worker.held.popleft() if worker.is_ready else None
        if under_way is not None:
            self.books.died(*under_way)
        for one in filter(None, worker.held):
            self.books.give_back(*one)
        worker.held.clear()

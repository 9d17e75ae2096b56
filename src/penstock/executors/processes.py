"""An executor of worker processes, which share what the first of them loaded, and die with their parent.

One fresh interpreter, the launcher, imports what is needed and becomes the first worker; the others are its forks.
This process itself is not forked: that would copy locks and thread pools in whatever state other threads hold them.
Nor is the caller's main module imported again, so no `if __name__ == "__main__"` is needed. The launcher has one thread
when it forks.

One socket pair a worker carries tasks and results. A worker that reads the end of its own leaves at once, in the middle
of a task too: so no worker outlives this process, however it ends. Workers are a session of their own, out of reach of
the terminal's Ctrl-C: the parent decides.

The place of a worker that dies is taken by a fresh interpreter, once there is work for it.
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
        """What gives the answer of a worker's only task; None where the worker is gone."""
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
    """One place of a worker, whichever process has it.

    Attributes:
        connection: to the process; closed while there is none.
        held: tasks sent to it without an answer so far, with their places; None is one that nobody waits for.
        is_ready: it has come as far as serving.
        bad_starts: processes one after the other that never did.
        pickled: the function that it has.
    """

    connection: Connection = field(init=False)
    held: deque[tuple[int, Any] | None] = field(default_factory=deque[tuple[int, Any] | None])
    is_ready: bool = False
    bad_starts: int = 0
    pickled: bytes | None = None

    @property
    def is_gone(self) -> bool:
        """Whether no process is there."""
        return self.connection.closed

    def hears(self, word: str, data: bytes) -> None:
        """What a process says of itself; raises what kept it from starting."""
        if word == "broken":
            raise loads(data, "why a worker did not start")
        self.is_ready, self.bad_starts = True, 0

    def wait_for_end(self) -> None:
        """Return when the killed process can do no more: its end of the socket is closed then."""
        if self.is_gone:
            return
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll(_PATIENCE_S):
                self.connection.recv_bytes()
        self.connection.close()


class _Crew:
    """The processes of an executor, and how they start."""

    def __init__(self, preload: list[str]) -> None:
        self._preload = preload
        self._started: list[subprocess.Popen[bytes]] = []
        self.stopped = _Stopped([])

    def start(self, workers: Sequence[_Worker]) -> None:
        """Start one interpreter, which serves the first of these, and will fork for the others."""
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
        """Let the first worker fork for the others."""
        with contextlib.suppress(OSError):  # it is gone: that shows when its answer is waited for
            send(first.connection, "fork")

    def restart(self, worker: _Worker) -> None:
        """Start a process in the place of one that is gone.

        Raises:
            PrepareError: it is the third one here that would never serve.
        """
        worker.bad_starts += not worker.is_ready
        if worker.bad_starts >= MOST_DEATHS:
            raise never_started()
        worker.connection.close()
        self.start([worker])

    def end(self) -> None:
        """Kill all processes, those of the workers that were forked too."""
        for one in self._started:
            # Not yet waited for, so the number is its own still.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
        for one in self._started:
            one.wait()
        self._started.clear()


def _deliver(connection: Connection, function: bytes, data: bytes) -> None:
    # Not in the caller's thread: the first worker reads nothing before its imports are done.
    with contextlib.suppress(OSError):  # its death shows when the result is asked for
        send(connection, "function", function)
        send(connection, "task", data)


def _value_of(word: str, data: bytes) -> Any:
    if word == "failed":
        raise loads(data, "the error of a task")
    return loads(data, "the result of a task")


@dataclass(slots=True)
class _Stopped:
    """Workers that were stopped from outside (SIGSTOP): they neither work nor end, and we wait for them."""

    groups: list[int]
    reported: set[int] = field(default_factory=set[int])

    def report(self) -> None:
        """Log the workers that were not logged already."""
        stopped = set(_stopped_in(self.groups))
        for pid in sorted(stopped - self.reported):
            _log.warning("worker process %d is stopped and the job waits for it: `kill -CONT %d`", pid, pid)
        self.reported = stopped


def _stopped_in(groups: Sequence[int]) -> Iterator[int]:
    """Processes of process groups that are stopped; none where the system does not list them."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
                if state in (b"T", b"t") and int(its_group) in groups:
                    yield int(name)


@dataclass(slots=True)
class _Run:
    """One map over the workers."""

    workers: list[_Worker]
    crew: _Crew
    function: bytes
    books: Books

    def start(self) -> None:
        """Dispatch the first tasks."""
        for worker in self.workers:
            worker.held = deque([None] * len(worker.held))  # of a map that was left in the middle
        self._feed()

    def results(self) -> Iterator[Any]:
        """Results in task order."""
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
        """Dispatch tasks until every worker has enough; the next one is made while they work."""
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
        """Send a task; a worker that is gone is found when its answer is waited for."""
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
            one.bad_starts = 0  # workers can start: who did not was killed
        if held is None:
            return
        try:
            self.books.done(held[0], _value_of(word, data))
        except Exception as error:
            self.books.failed(held[0], error)

    def _bury(self, worker: _Worker) -> None:
        """The task under way counts a death, unless its worker never served; the one behind it was not begun."""
        worker.connection.close()
        under_way = worker.held.popleft() if worker.is_ready else None
        if under_way is not None:
            self.books.died(*under_way)
        for one in filter(None, worker.held):
            self.books.give_back(*one)
        worker.held.clear()

"""An executor of Ray tasks: on a cluster that is there, or on one of this machine's own.

Ray schedules and finds out what died; order, deaths and what is set aside are in our own books, and what lasts lies in
storage: the driver may die too. Ray's own tries are off, as they know no bound where memory is short.

A cluster that is started here listens to 127.0.0.1 alone, wants a token that nobody else knows, sends no usage
statistics, has no dashboard, and keeps its files in a temporary folder that goes with it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock import __version__
from penstock._optional import require
from penstock._secrets import redact
from penstock.errors import ConfigError, PrepareError
from penstock.executors.law import Books, from_worker
from penstock.executors.seen import Seen, looked_at, to_be_seen
from penstock.store.place import Place

T = TypeVar("T")
R = TypeVar("R")
Function = Callable[[Any], Any]
Answer = tuple[Any, BaseException | None]

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""What Ray is told wherever we start it; what the user says holds."""

_SILENT: dict[str, Any] = {"configure_logging": False, "logging_level": logging.ERROR, "log_to_driver": False}

_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
_QUEUED = 4
_PATIENCE_S = 10.0
_LOOK_S = 120.0
_MOST_FOLDER_CHARACTERS = 40
_DEATHS = (
    "WorkerCrashedError",
    "OutOfMemoryError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "ActorDiedError",
)


class RayExecutor:
    """Runs each task as a Ray task of one CPU; see `penstock.abc.Executor`.

    Memory of this process: the tasks under way, four a CPU at most, and results that wait for an earlier one, 1,024 at
    most. A death is noticed once no child of the dead worker lives.

    Args:
        workers: tasks that run at once; by default one a CPU of the cluster, however it grows.
        address: of a cluster's head, as `host:port`; by default a cluster that `RAY_ADDRESS` or this machine names,
            and where there is none, one that is started here and ends with this executor.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: the cluster can't be joined, has no CPU, or has another version of Ray, Python or Penstock.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._exit = contextlib.ExitStack()
        try:
            self._ray, is_ours = self._exit.enter_context(_joined(workers, address))
            # A cluster of our own has as many CPUs as were asked for, so more may wait there.
            self._most = None if is_ours else workers
            if not self._num_cpus():
                raise ConfigError("the Ray cluster has no CPU for tasks", found=self._ray.cluster_resources())
            self._run = self._ray.remote(num_cpus=1, max_retries=0)(run_task)
            self._looked_at = LookedAt()
            self._look_at_nodes([])
        except BaseException:
            self._exit.close()
            raise

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order. The first tasks begin at once.

        Raises:
            ConfigError: the function can't be sent; a node has another version of Penstock.
            PrepareError: a task killed three workers, and the rest is done; or Ray failed.
        """
        try:
            function = self._ray.put(fn)
        except TypeError as error:
            raise ConfigError("the function of tasks can't be sent to a worker", found=_line(error)) from error
        before = self._ray.put(self._looked_at)
        run = _Run(self._ray, self._run, function, before, Books(iter(tasks)), self._most_under_way)
        run.feed()
        return run.results()

    def require_seen(self, reads: Sequence[Place], writes: Sequence[Place]) -> None:
        """Require that every node sees the same files at these paths as this process does.

        A node that joins later is held against them by its first task, until this executor is closed.

        Args:
            reads: files and folders of this machine that are read.
            writes: paths that are written; the folder that each will lie in gets a small hidden file.

        Raises:
            ConfigError: a node sees nothing there, or something else; it names both.
        """
        seen = self._exit.enter_context(to_be_seen(reads, writes))
        if seen:
            self._look_at_nodes(seen)

    def close(self) -> None:
        """End what is under way, and the cluster where it was started here."""
        self._exit.close()

    def _look_at_nodes(self, seen: Sequence[Seen]) -> None:
        """One task a node: it has this version of Penstock, and sees what is here."""
        ray, look = self._ray, _look
        remote = ray.remote(num_cpus=0, max_retries=1)(look)
        asked: dict[Any, dict[str, Any]] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                asked[remote.options(scheduling_strategy=on_node).remote(__version__, list(seen))] = node
        answers, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S)
        for one in silent:
            raise ConfigError("a node of the Ray cluster doesn't answer", found=_name(asked[one]))
        for one in answers:
            try:
                said = ray.get(one)
            except self._gone():
                continue  # the node, so it gets no task either
            except ray.exceptions.RayError as error:
                said = _line(error.cause if isinstance(error, ray.exceptions.RayTaskError) else error)
            if said is not None:
                raise _unfit(_name(asked[one]), said)
        self._looked_at = LookedAt(tuple(seen), frozenset(node["NodeID"] for node in asked.values()))

    def _gone(self) -> tuple[type[Exception], ...]:
        return tuple(getattr(self._ray.exceptions, name) for name in (*_DEATHS, "TaskUnschedulableError"))

    def _num_cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _most_under_way(self) -> int:
        return self._most or _QUEUED * max(1, self._num_cpus())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


# --- one map -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """One map: what is under way as Ray's references, the rest in the books."""

    ray: Any
    remote: Any
    function: Any
    before: Any
    books: Books
    count_most: Callable[[], int]
    most: int = 0
    under_way: dict[Any, tuple[int, Any]] = field(default_factory=dict[Any, tuple[int, Any]])

    def feed(self) -> None:
        """Give out tasks until there are enough."""
        self.most = self.most or self.count_most()
        while len(self.under_way) < self.most and self.books.has_task():
            place, task = self.books.next_task()
            try:
                one = self.remote.remote(self.function, task, __version__, os.getcwd(), self.before)
            except TypeError as error:
                self.books.failed(place, PrepareError("a task can't be sent to a worker", found=_line(error)))
            else:
                self.under_way[one] = (place, task)

    def results(self) -> Iterator[Any]:
        """Results in task order; what is under way ends where this is left."""
        try:
            while True:
                for result in self.books.due():
                    yield result
                    self.feed()
                self.feed()
                if self.under_way:
                    self._collect()
                elif not self.books.is_due():
                    self.books.end()
                    return
        finally:
            for one in self.under_way:
                with contextlib.suppress(Exception):
                    self.ray.cancel(one, force=True)
            self.under_way.clear()

    def _collect(self) -> None:
        waiting = list(self.under_way)
        ready, _ = self.ray.wait(waiting, num_returns=1, timeout=_PATIENCE_S)
        if not ready:
            self.most = 0  # counted again: the cluster may have grown, or shrunk
            return
        if len(waiting) > 1:
            ready, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for one in ready:
            self._take(one, *self.under_way.pop(one))

    def _take(self, one: Any, place: int, task: Any) -> None:
        errors = self.ray.exceptions
        try:
            value, error = self.ray.get(one)
        except tuple(getattr(errors, name) for name in _DEATHS):
            self.books.died(place, task)
            return
        except errors.RayTaskError as failed:
            # It never came to our own function, or its result did not cross.
            error = PrepareError("Ray couldn't run a task or take its result", found=_line(failed.cause or failed))
        except errors.RayError as failed:
            error = PrepareError("Ray couldn't run a task", found=_line(failed))
        except Exception as failed:
            error = PrepareError("the result of a task can't be read here", found=_line(failed))
        else:
            if error is None:
                self.books.done(place, value)
                return
        self.books.failed(place, error)


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What every node was asked to see before the work, and the nodes that do."""

    seen: tuple[Seen, ...] = ()
    nodes: frozenset[str] = frozenset()


def run_task(fn: Function, task: Any, version: str, folder: str, before: LookedAt) -> Answer:
    """Run a task in a worker: `(result, None)`, or `(None, error)`, as errors of tasks are answers.

    Args:
        fn: of the task.
        task: what is to be done.
        version: Penstock's, where the work was begun.
        folder: that the work was begun in; relative paths start there.
        before: what nodes that joined later have to see too.
    """
    if version != __version__:
        hint = "Install the same version on every node"
        return None, ConfigError(
            "a node has a different version of Penstock", found=__version__, expected=version, hint=hint
        )
    if (error := _late_look(before)) is not None:
        return None, error
    with contextlib.suppress(OSError):
        os.chdir(folder)
    for name, value in _ONE_THREAD.items():
        os.environ.setdefault(name, value)
    try:
        return fn(task), None
    except BaseException as error:
        return None, from_worker(error)


def _look(version: str, seen: Sequence[Seen]) -> str | None:
    """What keeps a node from doing the work; runs there."""
    if version != __version__:
        return f"Penstock {__version__} instead of {version}"
    return next((said for said in map(looked_at, seen) if said is not None), None)


@functools.lru_cache(maxsize=8)
def _late_look(before: LookedAt) -> ConfigError | None:
    """What `_look` says on a node that nobody looked at, at its worker's first task."""
    if not before.seen:
        return None
    node, name = _here()
    said = None if node in before.nodes else _look(__version__, before.seen)
    return None if said is None else _unfit(name, said)


def _here() -> tuple[str, str]:
    """The node's id, and its name in errors."""
    ray = require("ray", extra="ray")
    return ray.get_runtime_context().get_node_id(), f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"


def _unfit(name: str, said: str) -> ConfigError:
    hint = "Every node needs the same version of Penstock and the same files"
    return ConfigError(f"the Ray node {name} can't run this job", found=said, hint=hint)


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _line(error: BaseException) -> str:
    """An error of Ray's in one line, without its trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact(f"{type(error).__name__}: {lines[0] if lines else ''}")


# --- joining and starting ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _joined(workers: int | None, address: str | None) -> Generator[tuple[Any, bool]]:
    """Ray, connected, and whether the cluster was started here; a connection that was there before stays."""
    named = address or os.environ.get("RAY_ADDRESS")
    if named is not None and "://" in named:
        hint = "Run it on a node of the cluster, such as with `ray job submit`, and pass ray:HOST:PORT of the head node"
        raise ConfigError("Ray clients (ray://) aren't supported", found=named, hint=hint)
    ray = require("ray", extra="ray")
    require("ray.util.scheduling_strategies", extra="ray")
    is_ours = False
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(QUIET))
        if ray.is_initialized():
            joined = ray.get_runtime_context().gcs_address
            if named not in (None, "auto", joined):
                raise ConfigError("this process already joined another Ray cluster", found=joined, expected=named)
        else:
            stack.enter_context(_warnings_kept_back())
            # Ray prints deaths to standard output, which is not ours to fill; we log each of them.
            stack.enter_context(_held("ray._private.worker", "_worker_logs_enabled", False))
            found = named if named not in (None, "auto") else _started_here()
            if found not in (None, "local") and _answers(found):
                _join(ray, found, stack)
            elif named in (None, "local"):
                _start(ray, workers, stack)
                is_ours = True
            else:
                hint = "Start one with `ray start --head`, or omit the address"
                raise ConfigError("no Ray cluster to join", found=named, expected="host:port", hint=hint)
            stack.callback(ray.shutdown)
        yield ray, is_ours


def _started_here() -> str | None:
    """Address of the cluster that `ray start` made on this machine, as far as it is known."""
    return require("ray._private.utils", extra="ray").read_ray_address()


def _answers(address: str) -> bool:
    """Whether anybody is there: Ray itself would ask for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _join(ray: Any, address: str, stack: contextlib.ExitStack) -> None:
    before = os.environ.get("RAY_ADDRESS")
    stack.callback(_put_back, "RAY_ADDRESS", before)
    os.environ["RAY_ADDRESS"] = address  # Ray would take what stands there before what it is asked for
    try:
        with _signals_kept():
            ray.init(address=address, **_SILENT)
    except Exception as error:
        raise ConfigError("the Ray cluster can't be joined", found=_line(error), expected=address) from error


def _start(ray: Any, workers: int | None, stack: contextlib.ExitStack) -> None:
    # Paths of sockets are short, those of temporary folders not always.
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent if len(parent) < _MOST_FOLDER_CHARACTERS else "/tmp")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    # Where nothing is said Ray asks for a token from now on, and would write a new one into the home folder.
    if "RAY_AUTH_MODE" not in os.environ:
        stack.callback(_put_back, "RAY_AUTH_MODE", None)
        stack.enter_context(_environment({"RAY_AUTH_TOKEN": _token()}))
    # Else 127.0.0.1 would become the host's own address, and Ray would listen on all.
    stack.enter_context(_held("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False))
    try:
        with _signals_kept():
            ray.init(
                address="local",
                num_cpus=workers or len(os.sched_getaffinity(0)),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                **_SILENT,
            )
    except Exception as error:
        raise ConfigError("Ray can't be started on this machine", found=_line(error)) from error


@contextlib.contextmanager
def _held(module: str, name: str, value: Any) -> Generator[None]:
    """A setting of Ray's that has no other door."""
    holder: Any = require(module, extra="ray")
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@functools.cache
def _token() -> str:
    """Of the clusters of this process; Ray reads it once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _warnings_kept_back() -> Generator[None]:
    """No word of Ray's about its tokens: they are not the user's."""
    log = logging.getLogger("ray")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _put_back(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Set what is not set."""
    new = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """What a signal does stays the program's own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

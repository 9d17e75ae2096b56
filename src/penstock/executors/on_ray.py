"""Executor of Ray tasks: on an existing cluster, or on a local one.

Ray schedules tasks and detects deaths. Order, deaths and tasks set aside are tracked by `law.Books`. Persistent state
is in storage, so the driver may die too. Ray's own retries are disabled, because they are unbounded if memory is short.

A local cluster listens only on 127.0.0.1, requires a secret token, sends no usage statistics, has no dashboard, and
keeps its files in a temporary directory that is removed with it.
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
"""Environment of Ray in all cases; the user's values win."""

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
    """Executor that runs each task as a Ray task of one CPU; see `penstock.abc.Executor`.

    Memory of this process: at most four running tasks per CPU, and at most 1,024 results that wait for an earlier one.
    A
    dead worker is noticed once none of its children lives.

    Args:
        workers: number of parallel tasks; by default one per CPU of the cluster, even if it grows.
        address: address of a cluster's head, as `host:port`; by default from `RAY_ADDRESS` or this machine, else a
            local cluster is started, which ends with this executor.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: the cluster can't be joined, has no CPU, or has another version of Ray, Python or Penstock.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._exit = contextlib.ExitStack()
        try:
            self._ray, is_ours = self._exit.enter_context(_joined(workers, address))
            # A cluster of our own has the requested number of CPUs, so more tasks may wait there.
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
        """Yield `fn` of each task, in order. The first tasks start at once.

        Raises:
            ConfigError: the function can't be sent; a node has another version of Penstock.
            PrepareError: a task killed three workers, and the rest was run; or Ray failed.
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
        """Raise an error unless every node has the same files at these paths as this process.

        Nodes that join later are checked by their first task, until this executor is closed.

        Raises:
            ConfigError: a node has no or other files at a path; the message names both.
        """
        seen = self._exit.enter_context(to_be_seen(reads, writes))
        if seen:
            self._look_at_nodes(seen)

    def close(self) -> None:
        """Cancel running tasks, and stop a local cluster."""
        self._exit.close()

    def _look_at_nodes(self, seen: Sequence[Seen]) -> None:
        """Check the Penstock version and the files of each node, by one task per node."""
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


@dataclass(slots=True)
class _Run:
    """One map: running tasks as Ray references, everything else in `Books`."""

    ray: Any
    remote: Any
    function: Any
    before: Any
    books: Books
    count_most: Callable[[], int]
    most: int = 0
    under_way: dict[Any, tuple[int, Any]] = field(default_factory=dict[Any, tuple[int, Any]])

    def feed(self) -> None:
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
        """Yield results in task order; running tasks are cancelled if the caller stops early."""
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
            self.most = 0  # counted again: the cluster may have grown or shrunk
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
            # The task never reached our own function, or its result couldn't be transferred.
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
    """Files whose presence was checked on each node before the work, and the nodes that passed."""

    seen: tuple[Seen, ...] = ()
    nodes: frozenset[str] = frozenset()


def run_task(fn: Function, task: Any, version: str, folder: str, before: LookedAt) -> Answer:
    """Run a task in a worker: `(result, None)`, or `(None, error)`, because errors of tasks are results."""
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
    """Return why this node can't do the work, if it can't."""
    if version != __version__:
        return f"Penstock {__version__} instead of {version}"
    return next((said for said in map(looked_at, seen) if said is not None), None)


@functools.lru_cache(maxsize=8)
def _late_look(before: LookedAt) -> ConfigError | None:
    """Return the result of `_look` on an unchecked node, at its worker's first task."""
    if not before.seen:
        return None
    node, name = _here()
    said = None if node in before.nodes else _look(__version__, before.seen)
    return None if said is None else _unfit(name, said)


def _here() -> tuple[str, str]:
    """Return the node's id, and its name in errors."""
    ray = require("ray", extra="ray")
    return ray.get_runtime_context().get_node_id(), f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"


def _unfit(name: str, said: str) -> ConfigError:
    hint = "Every node needs the same version of Penstock and the same files"
    return ConfigError(f"the Ray node {name} can't run this job", found=said, hint=hint)


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _line(error: BaseException) -> str:
    """Return a Ray error as one line, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact(f"{type(error).__name__}: {lines[0] if lines else ''}")


@contextlib.contextmanager
def _joined(workers: int | None, address: str | None) -> Generator[tuple[Any, bool]]:
    """Connect to Ray; also yield whether the cluster was started here. An existing connection is left open."""
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
            # Ray prints deaths to standard output, which must stay clean; we log each of them.
            stack.enter_context(_held("ray._private.worker", "_worker_logs_enabled", False))
            found = named
            if named in (None, "auto"):  # a cluster that `ray start` created on this machine, if known
                found = require("ray._private.utils", extra="ray").read_ray_address()
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


def _answers(address: str) -> bool:
    """Return whether the address accepts connections: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _join(ray: Any, address: str, stack: contextlib.ExitStack) -> None:
    before = os.environ.get("RAY_ADDRESS")
    stack.callback(_put_back, "RAY_ADDRESS", before)
    os.environ["RAY_ADDRESS"] = address  # Ray would prefer this variable's value to its argument
    try:
        with _signals_kept():
            ray.init(address=address, **_SILENT)
    except Exception as error:
        raise ConfigError("the Ray cluster can't be joined", found=_line(error), expected=address) from error


def _start(ray: Any, workers: int | None, stack: contextlib.ExitStack) -> None:
    # Socket paths have a length limit, which temporary directories may exceed.
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent if len(parent) < _MOST_FOLDER_CHARACTERS else "/tmp")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    # Without this, Ray requires a token from now on, and would write a new one into the home directory.
    if "RAY_AUTH_MODE" not in os.environ:
        stack.callback(_put_back, "RAY_AUTH_MODE", None)
        stack.enter_context(_environment({"RAY_AUTH_TOKEN": _token()}))
    # Else 127.0.0.1 would become the host's own address, and Ray would listen on all interfaces.
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
    """Change a Ray setting that has no option."""
    holder: Any = require(module, extra="ray")
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@functools.cache
def _token() -> str:
    """Return the token of this process's clusters; Ray reads it once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _warnings_kept_back() -> Generator[None]:
    """Suppress Ray's warnings about its tokens: they aren't the user's."""
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
    """Set the variables that aren't set."""
    new = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """Restore the program's own signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

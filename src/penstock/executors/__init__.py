"""Executors, which run tasks in this process or in others.

See `penstock.abc.Executor` for their contract.

Built-in executors have a name in `EXECUTORS`. Others are registered in the entry-point group `penstock.executors` as
`name = "package.module:make"`, where `make(workers, preload)` returns an executor that is a context manager. Any object
with a method `map` is an executor too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from penstock._naming import nearest
from penstock._optional import imported, plug_ins, unusable
from penstock.abc import Executor
from penstock.errors import ConfigError, PenstockError
from penstock.executors.inline import InlineExecutor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from penstock.executors.processes import ProcessExecutor
    from penstock.store.place import Place

EXECUTORS = ("inline", "processes", "ray")
HERE = ("inline", "processes")
"""Executors that run on this machine only; one of them is the default."""

ENTRY_POINT_GROUP = "penstock.executors"

AnyExecutor: TypeAlias = str | Executor
"""Value of `executor=`: a name, `"ray:HOST:PORT"`, or an executor that the caller opens and closes."""

Maker: TypeAlias = Callable[[int, Sequence[str]], AbstractContextManager[Executor]]


def make_executor(
    executor: AnyExecutor,
    workers: int | None,
    preload: Sequence[str] = (),
    *,
    alone: bool = False,
    most: int | None = None,
    reads: Sequence[Place] = (),
    writes: Sequence[Place] = (),
) -> AbstractContextManager[Executor]:
    """Return an executor by name, or the one passed, as a context manager.

    It doesn't close an executor that was passed.

    Args:
        executor: `"inline"`, `"processes"`, `"ray"`, `"ray:HOST:PORT"`, a name of the entry-point group, or an
            executor.
        workers: number of tasks that run at once; None: one per core of this machine, or per CPU of a cluster.
        preload: modules that each process imports before its first task.
        alone: whether the work only suits one process: `"processes"` then starts none. Other executors still run it.
        most: number of workers that would have a task at all.
        reads: files and directories that tasks read. Those of this machine must be visible where the tasks run.
        writes: files and directories that tasks write; the same applies.

    Raises:
        ConfigError: the executor doesn't exist, there are no workers, or a cluster can't be joined or sees other files.
        MissingExtra: a required package isn't installed.
        PrepareError: raised by `map` of an executor that isn't built in if its results aren't those of its tasks, in
            order.

    Examples:
        >>> from penstock.executors import make_executor
        >>> with make_executor("inline", None) as executor:
        ...     list(executor.map(abs, [-1, 2]))
        [1, 2]
    """
    require_executor(executor, workers)
    if not isinstance(executor, str):
        from penstock.executors.checked import CheckedExecutor

        return contextlib.nullcontext(CheckedExecutor(executor))
    if executor == "inline" or (executor == "processes" and alone):
        return InlineExecutor()
    count = workers or len(os.sched_getaffinity(0))
    count = count if most is None else max(1, min(count, most))
    if executor == "processes":
        from penstock.executors.processes import ProcessExecutor

        return ProcessExecutor(count, preload)
    if executor == "ray" or executor.startswith("ray:"):
        return _on_ray(workers and count, executor.partition(":")[2], reads, writes)
    return _of_plug_in(plug_ins(ENTRY_POINT_GROUP, EXECUTORS)[executor], count, preload)


def require_executor(executor: AnyExecutor, workers: int | None) -> None:
    """Raise `ConfigError` unless the executor exists and supports this number of workers. Starts nothing.

    Args:
        executor: name of an executor, or an executor.
        workers: number of workers; None for the default.

    Examples:
        >>> from penstock.executors import require_executor
        >>> require_executor("processes", 4)
        >>> require_executor("threads", 4)
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: ...
    """
    if workers is not None and workers < 1:
        raise ConfigError("at least one worker is needed", found=f"workers={workers}", expected="1 or more")
    if executor == "inline" and workers not in (None, 1):
        what, hint = "inline runs one task at a time", 'Omit workers= (--workers), or use "processes"'
        raise ConfigError(what, found=f"workers={workers}", hint=hint)
    if not isinstance(executor, str) or executor in EXECUTORS or executor.startswith("ray:"):
        return
    known = plug_ins(ENTRY_POINT_GROUP, EXECUTORS)
    if executor not in known:
        close = nearest(executor, [*EXECUTORS, *known])
        hint = f"Did you mean {close!r}?" if close else None
        raise ConfigError("unknown executor", found=executor, expected=" | ".join([*EXECUTORS, *known]), hint=hint)


@contextlib.contextmanager
def _on_ray(workers: int | None, address: str, reads: Sequence[Place], writes: Sequence[Place]) -> Generator[Executor]:
    from penstock.executors.on_ray import RayExecutor  # only for Ray

    with RayExecutor(workers, address or None) as executor:
        executor.require_seen(reads, writes)
        yield executor


def _of_plug_in(point: EntryPoint, workers: int, preload: Sequence[str]) -> AbstractContextManager[Executor]:
    make: Maker = imported(point)
    try:
        return _checked(make(workers, preload))
    except PenstockError:
        raise
    except Exception as error:
        raise unusable(point, f"doesn't return an executor ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _checked(made: AbstractContextManager[Executor]) -> Generator[Executor]:
    from penstock.executors.checked import CheckedExecutor

    with made as executor:
        yield CheckedExecutor(executor)


def __getattr__(name: str) -> object:
    if name != "ProcessExecutor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.executors.processes import ProcessExecutor

    return ProcessExecutor


__all__ = ["EXECUTORS", "HERE", "AnyExecutor", "InlineExecutor", "ProcessExecutor", "make_executor", "require_executor"]

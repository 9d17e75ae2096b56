"""Executors, which run tasks in this process or in others. See `penstock.abc.Executor` for the laws.

Built-in ones have a name in `EXECUTORS`; others come through the entry-point group `penstock.executors`, as
`name = "package.module:make"`, where `make(workers, preload)` returns an executor that is a context manager. Any object
that has `map` is one too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from penstock._naming import nearest
from penstock._plug_ins import imported, plug_ins, unusable
from penstock.abc import Executor
from penstock.errors import ConfigError, PenstockError
from penstock.executors.checked import CheckedExecutor
from penstock.executors.inline import InlineExecutor
from penstock.executors.processes import ProcessExecutor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from penstock.store.place import Place

EXECUTORS = ("inline", "processes", "ray")
HERE = ("inline", "processes")
"""Those that never leave this machine, one of which is what nobody asked for."""

ENTRY_POINT_GROUP = "penstock.executors"

AnyExecutor: TypeAlias = str | Executor
"""What `executor=` takes: a name, `"ray:HOST:PORT"`, or an executor that the caller opens and closes."""

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
    """An executor by name, or the one that is given; use it in a `with` block, which does not close a given one.

    Args:
        executor: `"inline"`, `"processes"`, `"ray"`, `"ray:HOST:PORT"`, a name of the entry-point group, or an
            executor.
        workers: how many tasks run at once; None: one a core of this machine, or a CPU of a cluster.
        preload: modules that each process imports before its first task.
        alone: the work is for one process: `"processes"` then starts none. Any other executor that was asked for
            gets it.
        most: workers that would have a task at all.
        reads: files and folders that tasks read: those of this machine must be seen where the tasks run.
        writes: the same for what they write.

    Raises:
        ConfigError: no such executor, no worker, or a cluster that can't be joined or sees other files.
        MissingExtra: what it needs is not installed.
        PrepareError: from `map` of one that is not built in: its results are not those of its tasks, in order.
    """
    require_executor(executor, workers)
    if not isinstance(executor, str):
        return contextlib.nullcontext(CheckedExecutor(executor))
    if executor == "inline" or (executor == "processes" and alone):
        return InlineExecutor()
    count = workers or len(os.sched_getaffinity(0))
    count = count if most is None else max(1, min(count, most))
    if executor == "processes":
        return ProcessExecutor(count, preload)
    if executor == "ray" or executor.startswith("ray:"):
        return _on_ray(workers and count, executor.partition(":")[2], reads, writes)
    return _of_plug_in(plug_ins(ENTRY_POINT_GROUP, EXECUTORS)[executor], count, preload)


def require_executor(executor: AnyExecutor, workers: int | None) -> None:
    """That there is such an executor, with such a number of workers; raises `ConfigError`. None is started."""
    if workers is not None and workers < 1:
        raise ConfigError("the work needs a worker", found=f"workers={workers}", expected="1 or more")
    if executor == "inline" and workers not in (None, 1):
        what, hint = "inline does one task after another", 'Leave workers= (--workers) out, or name "processes"'
        raise ConfigError(what, found=f"workers={workers}", hint=hint)
    if not isinstance(executor, str) or executor in EXECUTORS or executor.startswith("ray:"):
        return
    known = plug_ins(ENTRY_POINT_GROUP, EXECUTORS)
    if executor not in known:
        close = nearest(executor, [*EXECUTORS, *known])
        hint = f"Did you mean {close!r}?" if close else None
        raise ConfigError("no such executor", found=executor, expected=" | ".join([*EXECUTORS, *known]), hint=hint)


@contextlib.contextmanager
def _on_ray(workers: int | None, address: str, reads: Sequence[Place], writes: Sequence[Place]) -> Generator[Executor]:
    from penstock.executors.on_ray import RayExecutor  # needed for Ray alone

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
        raise unusable(point, f"makes no executor ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _checked(made: AbstractContextManager[Executor]) -> Generator[Executor]:
    with made as executor:
        yield CheckedExecutor(executor)


__all__ = ["EXECUTORS", "HERE", "AnyExecutor", "InlineExecutor", "ProcessExecutor", "make_executor", "require_executor"]

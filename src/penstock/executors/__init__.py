"""Executors, which run tasks in this process or in others. See `penstock.abc.Executor` for the laws."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError
from penstock.executors.inline import InlineExecutor
from penstock.executors.processes import ProcessExecutor

EXECUTORS = ("processes", "inline")


def make_executor(name: str, workers: int, preload: Sequence[str] = ()) -> InlineExecutor | ProcessExecutor:
    """An executor by name; use it in a `with` block.

    Args:
        name: `"processes"` or `"inline"`.
        workers: how many processes.
        preload: modules that each process imports before its first task.

    Raises:
        ConfigError: no such executor, or no worker.
    """
    if workers < 1:
        raise ConfigError("the work needs a worker", found=f"workers={workers}", expected="1 or more")
    if name == "inline":
        return InlineExecutor()
    if name == "processes":
        return ProcessExecutor(workers, preload)
    raise ConfigError("no such executor", found=name, expected=" | ".join(EXECUTORS))


__all__ = ["EXECUTORS", "InlineExecutor", "ProcessExecutor", "make_executor"]

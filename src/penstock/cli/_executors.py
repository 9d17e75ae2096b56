"""`--executor` and `--workers`, the same for all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def executor_options(command: Command) -> Command:
    """Add `--executor` and `--workers`, with `processes` as the default executor."""
    return _options(command, "processes", "Number of parallel tasks.", "one per core, or per CPU of the cluster")


def modest_executor_options(command: Command) -> Command:
    """Add the same options to a command that chooses the number of processes by the size of the data."""
    return _options(command, "processes", "Number of parallel tasks.", "depends on the size of the data")


def optional_executor_options(command: Command) -> Command:
    """Add the same options to a command that works in this process if neither is given."""
    text = "Number of parallel tasks. Without --workers and --executor, one process does all the work."
    return _options(command, None, text, None)


def _options(command: Command, default: str | None, workers: str, default_workers: str | None) -> Command:
    shown: dict[str, Any] = {"default": default, "show_default": True} if default else {}
    workers_shown: dict[str, Any] = {"help": workers, "show_default": default_workers or False}
    return click.option(
        "--executor",
        metavar="NAME",
        help="Where tasks run: inline, processes, ray, ray:HOST:PORT, or an executor plug-in by name.",
        **shown,
    )(click.option("--workers", type=click.IntRange(min=1), **workers_shown)(command))

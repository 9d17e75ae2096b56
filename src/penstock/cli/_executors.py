"""`--executor` and `--workers`, the same for all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def executor_options(command: Command) -> Command:
    """`--executor --workers`; the executor is `processes` where none is named."""
    return _options(command, "processes", "Tasks that run at once; by default one a core, or a CPU of the cluster.")


def modest_executor_options(command: Command) -> Command:
    """The same, of commands that choose by the size of the data how many processes they take."""
    return _options(command, "processes", "Tasks that run at once; by default chosen by the size of the data.")


def optional_executor_options(command: Command) -> Command:
    """The same, of commands that work in this process where neither is given."""
    return _options(command, None, "Tasks that run at once; without it and --executor this process works alone.")


def _options(command: Command, default: str | None, workers: str) -> Command:
    shown: dict[str, Any] = {"default": default, "show_default": True} if default else {}
    return click.option(
        "--executor",
        metavar="NAME",
        help="Where tasks run: inline, processes, ray, ray:HOST:PORT, or one of a package of its own, by its name.",
        **shown,
    )(
        # Energon calls it --num-workers.
        click.option(*("--workers", "--num-workers", "workers"), type=click.IntRange(min=1), help=workers)(command)
    )

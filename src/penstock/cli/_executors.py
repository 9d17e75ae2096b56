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


def alone_options(verb: str) -> Callable[[Command], Command]:
    """The same, of a command that has no tasks to give away: others than `inline` are refused.

    Args:
        verb: its name.
    """

    def take(context: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, "inline", 1):
            from penstock.errors import ConfigError

            what = f"`{verb}` writes one dataset in its order, and has no tasks for an executor"
            hint = f"Leave {param.opts[0]} out"
            raise ConfigError(what, found=f"{param.opts[0]} {value}", expected="inline, 1 worker", hint=hint)

    def decorate(command: Command) -> Command:
        settings: dict[str, Any] = {"callback": take, "expose_value": False}
        command = _workers(f"`{verb}` works in this process: 1.", **settings)(command)
        return click.option("--executor", metavar="NAME", help=f"`{verb}` works in this process: inline.", **settings)(
            command
        )

    return decorate


def _options(command: Command, default: str | None, workers: str) -> Command:
    shown: dict[str, Any] = {"default": default, "show_default": True} if default else {}
    return click.option(
        "--executor",
        metavar="NAME",
        help="Where tasks run: inline, processes, ray, ray:HOST:PORT, or one of a package of its own, by its name.",
        **shown,
    )(_workers(workers)(command))


def _workers(help: str, **settings: Any) -> Callable[[Command], Command]:
    # Energon calls it --num-workers.
    return click.option(*("--workers", "--num-workers", "workers"), type=click.IntRange(min=1), help=help, **settings)

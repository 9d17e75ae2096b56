"""Options of verbs whose work may be shared: `--part I/N`, `--finish`, `--no-work`; and what they end with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import click

from penstock._numbers import count_in
from penstock.errors import ConfigError, PrepareError

_INDEX_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")

Command = Callable[..., Any]


def sharing_options(command: Command) -> Command:
    """`--part`, `--finish` and `--no-work`."""
    no_work = "With --finish: don't run missing parts; list them and exit with 14."
    for option in (
        click.option("--no-work", is_flag=True, help=no_work),
        click.option("--finish", is_flag=True, help="Run the missing parts of a distributed job, then commit."),
        part_option("Process part I (from 0) of N, without committing"),
    ):
        command = option(command)
    return command


def part_option(does: str) -> Callable[[Command], Command]:
    """Return `--part`, whose help starts with `does`."""
    auto = "auto/N takes I from $SLURM_ARRAY_TASK_ID or $JOB_COMPLETION_INDEX."
    return click.option("--part", metavar="I/N", callback=_part, help=f"{does}. {auto}")


restart_option = click.option("--restart", is_flag=True, help="Discard an unfinished run and start over.")


def missing_text(output: str, missing: Sequence[int]) -> str:
    """Return the missing parts as an array expression, or what to do if the work isn't divided into parts.

    Args:
        output: the output of the job, or its work directory.
        missing: indices of missing parts.
    """
    from penstock.engine.status import status_of
    from penstock.errors import NotFound, PenstockError
    from penstock.store.place import place_of

    what = "work is missing"
    try:
        found = status_of(place_of(output))
        if found.shares is not None:
            return f"--array={array_expression(missing)}"
        what = f"{found.missing:,} of {found.tasks:,} tasks are missing" if found.missing else what
    except NotFound:
        pass
    except (PenstockError, OSError):
        return f"--array={array_expression(missing)}"
    return f"{output}: {what}. Run with --finish to complete them, or distribute them with --part I/N"


def end_unfinished(missing: Sequence[Any]) -> None:
    """Exit with status 14 if parts are missing."""
    if missing:
        raise SystemExit(PrepareError.exit_status)


@contextlib.contextmanager
def keeping(output: str) -> Generator[None]:
    """Report at an interrupt how much work on an output is kept, and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(output)) from None


def _kept(output: str) -> str:
    from penstock.engine.status import status_of
    from penstock.store.place import place_of

    resume = "Re-run the same command to resume, or add --restart to start over"
    try:
        found = status_of(place_of(output))
    except Exception:  # whatever it is, the interrupt is what counts
        return f"stopped. {resume}"
    return f"stopped: {found.done:,} of {found.tasks:,} tasks kept. {resume}" if found.tasks else f"stopped. {resume}"


def _part(context: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    return None if given is None else parse_part(given)


def parse_part(given: str) -> tuple[int, int]:
    """`(i, n)` of `"i/n"` or `"auto/n"`.

    Raises:
        click.BadParameter: it is neither, or I is out of range.
        ConfigError: `auto` without an index in the environment.
    """
    index, _, count = given.partition("/")
    shown = repr(given)
    if index == "auto":
        name = next((name for name in _INDEX_VARIABLES if os.environ.get(name)), None)
        if name is None:
            raise ConfigError(
                "--part auto/N needs an array index",
                expected=f"{' or '.join(_INDEX_VARIABLES)} in the environment",
                hint="Name the part instead: --part I/N",
            )
        index = os.environ[name]
        shown = f"{given!r} with {name}={index}"
    number, shares = count_in(index), count_in(count)
    if number is None or not shares:
        raise click.BadParameter(f"{shown} is not I/N or auto/N with N of at least 1.")
    if number >= shares:
        raise click.BadParameter(f"{shown}: I is out of range, expected 0 to {shares - 1}.")
    return number, shares


def array_expression(shares: Sequence[int]) -> str:
    """Return parts as the index list of a job array: `3,17,90-95`."""
    runs: list[list[int]] = []
    for share in sorted(shares):
        if runs and share == runs[-1][1] + 1:
            runs[-1][1] = share
        else:
            runs.append([share, share])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

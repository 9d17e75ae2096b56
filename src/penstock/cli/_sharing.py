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
    no_work = "With --finish: commit where nothing is missing, else print the missing shares and end with 14."
    for option in (
        click.option("--no-work", is_flag=True, help=no_work),
        click.option("--finish", is_flag=True, help="Do what is missing of shared work, and commit."),
        part_option("Do the I-th (from 0) of N shares of the work, and commit nothing"),
    ):
        command = option(command)
    return command


def part_option(does: str) -> Callable[[Command], Command]:
    """`--part`, and what it does."""
    auto = "auto/N: I is $SLURM_ARRAY_TASK_ID or $JOB_COMPLETION_INDEX."
    return click.option("--part", metavar="I/N", callback=_part, help=f"{does}; {auto}")


restart_option = click.option("--restart", is_flag=True, help="Discard the work of an unfinished run, and start over.")


def missing_text(output: str, missing: Sequence[int]) -> str:
    """The shares that are to be started again; what to do instead where nobody divided the work into shares.

    Args:
        output: where the work lies: what it makes, or the folder of marks.
        missing: shares.
    """
    from penstock.errors import NotFound, PenstockError
    from penstock.store.place import place_of
    from penstock.work.status import status_of

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
    return f"{output}: {what}, and nobody divided them into shares: do them by --finish, or by an array of --part I/N"


def end_unfinished(missing: Sequence[Any]) -> None:
    """End the command with 14 where shares are missing."""
    if missing:
        raise SystemExit(PrepareError.exit_status)


@contextlib.contextmanager
def keeping(output: str) -> Generator[None]:
    """Say at an interrupt what the work on an output keeps, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(output)) from None


def _kept(output: str) -> str:
    from penstock.store.place import place_of
    from penstock.work.status import status_of

    go_on = "Run the same command to go on, or --restart"
    try:
        found = status_of(place_of(output))
    except Exception:  # whatever it is, the interrupt is what counts
        return f"stopped. {go_on}"
    return f"stopped; {found.done:,} of {found.tasks:,} tasks kept. {go_on}" if found.tasks else f"stopped. {go_on}"


def _part(context: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    return None if given is None else parse_part(given)


def parse_part(given: str) -> tuple[int, int]:
    """`(i, n)` of `"i/n"` or `"auto/n"`.

    Raises:
        click.BadParameter: it is neither, or I is no share of N.
        ConfigError: `auto` without a variable that says which share.
    """
    index, _, count = given.partition("/")
    shown = repr(given)
    if index == "auto":
        name = next((name for name in _INDEX_VARIABLES if os.environ.get(name)), None)
        if name is None:
            raise ConfigError(
                "auto knows no share here", expected=" or ".join(_INDEX_VARIABLES), hint="Say which: --part I/N"
            )
        index = os.environ[name]
        shown = f"{given!r} with {name}={index}"
    number, shares = count_in(index), count_in(count)
    if number is None or not shares:
        raise click.BadParameter(f"{shown} is not I/N or auto/N, N 1 or more")
    if number >= shares:
        raise click.BadParameter(f"{shown}: shares of {count} count from 0 to {shares - 1}")
    return number, shares


def array_expression(shares: Sequence[int]) -> str:
    """Shares as an array's index list: `3,17,90-95`."""
    runs: list[list[int]] = []
    for share in sorted(shares):
        if runs and share == runs[-1][1] + 1:
            runs[-1][1] = share
        else:
            runs.append([share, share])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

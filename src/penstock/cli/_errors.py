"""What each code of an error means and what to do: `penstock --errors`, and the page of errors."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from penstock import errors

SYSTEM, OUR_FAULT, INTERRUPTED = 18, 70, 130

REMEDIES = {
    "penstock": "Every error of Penstock is one: `except PenstockError` takes them all.",
    "format": "`penstock verify --depth full` lists all there is, each with its place and what to do.",
    "truncated": "Copy or fetch the file again; what a killed run left is finished by the same command.",
    "corrupt": "Copy the file again, or `penstock repair`, which says first what it would do.",
    "unsupported": "The hint names what reads it: often `penstock convert`, or a verb for data of this kind.",
    "too-large": "Data that claim more than they hold are refused; `docs/guide/limits.md` lists the limits.",
    "cook": "The message names the sample; `on_error` of the loader says what becomes of it in a run.",
    "not-found": "Check the path, key or name; nearby names are in the hint.",
    "excluded": "`penstock exclude TARGET --show` lists them with their reasons; `--undo` takes one off the list.",
    "config": "The message says which option, and what it takes.",
    "resume-mismatch": "The message names what differs; `accept=[…]` takes it and records it.",
    "unsafe-data": "If the data are yours, pass what the hint names: `trust=` (`--trust`) or `--follow-links`.",
    "missing-extra": "Run the `pip install` command of the message. `penstock doctor` lists all extras.",
    "prepare": "Run the same command again: it goes on where it stopped. `penstock status OUT` says what is missing.",
    "unreachable": "Look at the network and the endpoint (`penstock doctor` shows it), and run it again.",
    "denied": "Look at the credentials: the message says which service refused them, and never shows them.",
}
"""Code → what to do."""

OTHERS = {
    "usage": (2, "wrong usage", "`penstock VERB --help` has all options and an example."),
    "system": (
        SYSTEM,
        "the system refused: rights, disk full, memory, input or output",
        "The message names the file, but where memory ends: look at rights, room and limits (`penstock doctor`), "
        "and run it again.",
    ),
    "fault": (
        OUR_FAULT,
        "a fault of Penstock: an unexpected error",
        "Please report it, with what `penstock --debug …` prints for the same command.",
    ),
    "interrupted": (INTERRUPTED, "interrupted", "The message says what is kept, and how to go on."),
}
"""Code of what is no error of Penstock's own → exit status, meaning, what to do."""

_GOOD = {
    0: "done, or clean",
    1: "verify or lint found an error, repair left one, find found nothing, diff a difference",
}


def kinds() -> Iterator[type[errors.PenstockError]]:
    """Every kind of error, each before those that it takes in."""
    left = [errors.PenstockError]
    while left:
        kind = left.pop(0)
        yield kind
        left[:0] = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]


def exit_codes() -> Iterator[tuple[int, str]]:
    """Every exit status with its meaning."""
    yield from _GOOD.items()
    yield OTHERS["usage"][:2]
    for kind in kinds():
        yield kind.exit_status, f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"
    yield from (one[:2] for code, one in OTHERS.items() if code != "usage")


def codes() -> Iterator[tuple[str, str, int, str]]:
    """Each code, the name of its class where it has one, its exit status, and what it means and what to do."""
    for kind in kinds():
        said = " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())
        yield kind.code, kind.__name__, kind.exit_status, f"{said} {REMEDIES[kind.code]}"
    for code, (status, what, remedy) in OTHERS.items():
        yield code, "", status, f"{what[0].upper()}{what[1:]}. {remedy}"


def errors_option() -> click.Option:
    """`--errors`."""

    def show(context: click.Context, option: click.Parameter, given: bool) -> None:
        if given:
            click.echo(page())
            context.exit()

    what = "Explain the codes that end messages, such as [corrupt], and exit codes."
    return click.Option(["--errors"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=what)


def page() -> str:
    """All codes, each with its exit status, what it means and what to do."""
    told = [f"[{code}] exit {status}: {text}" for code, _, status, text in codes()]
    told += [f"exit {status}: {what}" for status, what in _GOOD.items()]
    return "\n".join(textwrap.fill(one, 100, subsequent_indent="    ") for one in told)

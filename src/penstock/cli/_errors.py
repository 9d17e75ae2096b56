"""Meanings and remedies of error codes, for `penstock --errors` and the errors page of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from penstock import errors

SYSTEM, OUR_FAULT, INTERRUPTED = 18, 70, 130

REMEDIES = {
    "penstock": "`except PenstockError` catches all errors below.",
    "format": "`penstock verify --depth full` lists every problem with its location and what to do.",
    "truncated": "Copy or download the file again. If a run was killed, re-run the same command to finish it.",
    "corrupt": "Copy the file again, or run `penstock repair`, which lists its changes before it makes any.",
    "unsupported": "The hint names a way to read the data: often `penstock convert`, or another command.",
    "too-large": "Data that claims more than its file can hold is rejected. `docs/guide/limits.md` lists the limits.",
    "cook": "Fix the function or the data. The message names the sample.",
    "not-found": "Check the path, key or name. The hint suggests similar names.",
    "excluded": "`penstock exclude TARGET --show` lists excluded samples and the reasons; `--undo` restores them.",
    "config": "The message names the option and the values that it accepts.",
    "resume-mismatch": "The message names the difference. `accept=[…]` accepts it and records it in the state.",
    "unsafe-data": "If you trust the data, pass the option in the hint: `trust=` (`--trust`) or `--follow-links`.",
    "missing-extra": "Run the `pip install` command in the message. `penstock doctor` lists all extras.",
    "prepare": "Re-run the same command to resume. `penstock status OUT` lists missing work.",
    "unreachable": "Check the network and the endpoint (`penstock doctor` shows it), then re-run the command.",
    "denied": "Check the credentials. The message names the service that rejected them, never the credentials.",
}
"""Code → what to do."""

OTHERS = {
    "usage": (2, "wrong usage", "`penstock VERB --help` shows all options and an example."),
    "system": (
        SYSTEM,
        "the operating system reported an error: permissions, a full disk, memory, or I/O",
        "The message names the file, unless memory ran out. Check permissions, free space and limits "
        "(`penstock doctor`), then re-run the command.",
    ),
    "fault": (
        OUR_FAULT,
        "unexpected error: a bug in Penstock",
        "Please report it with the output of `penstock --debug …` for the same command.",
    ),
    "interrupted": (INTERRUPTED, "interrupted", "The message explains how to resume and which work is kept."),
}
"""Code of an error that isn't a `PenstockError` → exit status, meaning, what to do."""

_GOOD = {
    0: "success",
    1: "verify or energon lint found errors, repair left errors, find found nothing, or diff found differences",
}


def kinds() -> Iterator[type[errors.PenstockError]]:
    """Yield every error class, each before its subclasses."""
    left = [errors.PenstockError]
    while left:
        kind = left.pop(0)
        yield kind
        left[:0] = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]


def exit_codes() -> Iterator[tuple[int, str]]:
    """Yield every exit status with its meaning."""
    yield from _GOOD.items()
    yield OTHERS["usage"][:2]
    for kind in kinds():
        yield kind.exit_status, f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"
    yield from (one[:2] for code, one in OTHERS.items() if code != "usage")


def codes() -> Iterator[tuple[str, str, int, str]]:
    """Yield the code, class name (empty if none), exit status, and meaning with remedy of each error."""
    for kind in kinds():
        said = " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())
        yield kind.code, kind.__name__, kind.exit_status, f"{said} {REMEDIES[kind.code]}"
    for code, (status, what, remedy) in OTHERS.items():
        yield code, "", status, f"{what[0].upper()}{what[1:]}. {remedy}"


def errors_option() -> click.Option:
    """Return the option `--errors`."""

    def show(context: click.Context, option: click.Parameter, given: bool) -> None:
        if given:
            click.echo(page())
            context.exit()

    text = "Explain error codes such as [corrupt], and exit statuses."
    return click.Option(["--errors"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


def page() -> str:
    """Return the text of `penstock --errors`: each code with its exit status, meaning and remedy."""
    told = [f"[{code}] exit {status}: {text}" for code, _, status, text in codes()]
    told += [f"exit {status}: {what}" for status, what in _GOOD.items()]
    told.append("Codes of findings, such as pbin.truncated: `penstock verify --explain CODE`")
    return "\n".join(textwrap.fill(one, 100, subsequent_indent="    ") for one in told)

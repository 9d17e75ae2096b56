"""Options that the commands on WebDatasets share, and those that only `penstock energon` has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from typing import Any, TypeVar

import click

from penstock.cli._common import copied, said

_FIRST_BYTES = 128

Command = TypeVar("Command", bound=Callable[..., Any])

MediaChoice = tuple[str, str | None]
"""How media are found: extension, glob or header; and the patterns of glob."""


def media_options(command: Command) -> Command:
    """`--media-by-extension --media-by-glob --media-by-header --exact --headers-only`."""
    for option in (
        click.option(
            "--headers-only",
            is_flag=True,
            help="Don't read files to count what their headers don't state; leave those durations unknown.",
        ),
        click.option(
            "--exact", is_flag=True, help="Decode images, video and audio and count, instead of trusting headers."
        ),
        click.option(
            *("--media-by-header", "by_header"),
            is_flag=True,
            help="Index media found by their first bytes.",
        ),
        click.option(
            *("--media-by-glob", "by_glob"),
            metavar="P[,P]",
            help="Index media with names that match a pattern, such as '*.jpg,*.png'.",
        ),
        click.option(
            *("--media-by-extension", "by_extension"),
            is_flag=True,
            help="Index media found by their extension.",
        ),
    ):
        command = option(command)
    return command


class _Refused(click.UsageError):
    exit_code = 1


def take_media(options: dict[str, Any]) -> MediaChoice | None:
    """Take the options of `media_options`, but the depth, out of `options`; None if none was given."""
    if options["exact"] and options["headers_only"]:
        raise click.UsageError("Give either --exact or --headers-only.")
    by_extension, by_header = options.pop("by_extension"), options.pop("by_header")
    patterns: str | None = options.pop("by_glob")
    given = [
        *(["extension"] if by_extension else []),
        *(["glob"] if patterns is not None else []),
        *(["header"] if by_header else []),
    ]
    if len(given) > 1:
        raise click.UsageError("Give only one way to find media: by extension, by glob or by header.")
    return (given[0], patterns) if given else None


def refuse_given(context: click.Context, names: Container[str], why: str) -> None:
    """Raise a usage error for given options that would have no effect.

    Args:
        context: of the command.
        names: of the parameters.
        why: of the sentence that names them.

    Raises:
        click.UsageError: one of them was given; see `refusal`.
    """
    given = [
        one.opts[0]
        for one in context.command.params
        if one.name in names and context.get_parameter_source(one.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise refusal(f"{why}: leave out {', '.join(given)}.")


def with_energon_options(command: click.Command, name: str) -> click.Command:
    """Return a command of ours with the options and spellings that only Energon's command of this name has."""
    command = copied(command)
    for place, option in enumerate(command.params):
        if option.opts[0] in _SPELLINGS:
            option = command.params[place] = copy.copy(option)
            option.opts = _SPELLINGS[option.opts[0]]
    command.params += [
        click.Option(list(names), expose_value=False, **_ONLY_ENERGON[names]) for names in _OPTIONS.get(name, ())
    ]
    return command


def _set_progress(_context: click.Context, _option: click.Parameter, shows: bool) -> None:
    if not shows:
        said()["progress"] = "none"


def _set_cache(_context: click.Context, _option: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        import os

        os.environ["PENSTOCK_CACHE"] = folder


def _note_duplicates(_context: click.Context, _option: click.Parameter, given: bool) -> None:
    if given:
        from penstock.cli._output import note

        note("--fix-duplicates: shards are never changed here; a repeated key is an error that names it")


_SPELLINGS = {
    "--ratio": ["--split-ratio"],
    "--overwrite": ["--overwrite", "--force-overwrite"],
    "--workers": ["--workers", "--num-workers"],
    **{
        f"--media-by-{way}": [f"--media-by-{way}", f"--media-metadata-by-{way}"]
        for way in ("extension", "glob", "header")
    },
}
"""Option → its spellings below `penstock energon`."""

_PROGRESS = ("--progress/--no-progress", "show_progress")
_CACHE = ("--tmp-path",)
_ONLY_ENERGON: dict[tuple[str, ...], dict[str, Any]] = {
    _PROGRESS: {"default": True, "callback": _set_progress, "help": "Show a progress bar on a terminal."},
    _CACHE: {"callback": _set_cache, "help": "Directory for temporary files of remote datasets."},
    ("--fix-duplicates",): {
        "is_flag": True,
        "callback": _note_duplicates,
        "help": "Accepted for Energon; has no effect, as shards are never changed.",
    },
    ("-w", "--allow-slow"): {"is_flag": True, "help": "Accepted for Energon; has no effect."},
}
"""Names of an option → the rest of it."""
_OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "prepare": (("--fix-duplicates",), _PROGRESS, _CACHE),
    "prepare-media": (_PROGRESS, _CACHE),
    "mount": (("-w", "--allow-slow"),),
}
"""Command of Energon → its options that our command of the same name lacks."""


def as_energon() -> bool:
    """Return whether the command runs as `penstock energon …`."""
    return bool((click.get_current_context().obj or {}).get("as_energon"))


def ratio_option() -> str:
    """Return the name of the option for the ratio of splits, which Energon spells differently."""
    return "--split-ratio" if as_energon() else "--ratio"


def refusal(what: str) -> click.UsageError:
    """Return the error for options that contradict each other: exit status 1 in Energon's commands, else 2."""
    return _Refused(what) if as_energon() else click.UsageError(what)


def closing(words: str) -> str:
    """Return Energon's last line, which scripts look for; empty for our own command."""
    return f"\n{words}" if as_energon() else ""


def fields_of(source: Any, index: int) -> list[str]:
    """Describe a sample as Energon does, which scripts rely on: a line per field with its name, type and value."""
    from penstock._printable import printable
    from penstock.errors import PenstockError

    try:
        fields = dict(source[index]).items()
    except (PenstockError, OSError):  # the table below says what is wrong
        return []
    lines = (printable(f" - {name} ({type(value)}): {_in_words(value)}") for name, value in fields)
    return [f"Sample {index}", *lines, ""]


def _in_words(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"bytes(length={len(value)}, value={bytes(value[:_FIRST_BYTES])!r})"
    return repr(value)

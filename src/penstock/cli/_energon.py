"""Options that the commands on WebDatasets share: Energon's, in their present and earlier spellings."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar

import click

from penstock.cli._common import progress_option_of

_FIRST_BYTES = 128

Command = TypeVar("Command", bound=Callable[..., Any])

MediaChoice = tuple[str, str | None]
"""How media are found: extension, glob or header; and the patterns of glob."""


def media_options(command: Command) -> Command:
    """`--media-by-extension --media-by-glob --media-by-header`, also as `--media-metadata-by-…`, and the depth."""
    for option in (
        click.option(
            "--headers-only",
            is_flag=True,
            help="Leave out durations and counts that no header states, instead of reading such files once to count.",
        ),
        click.option(
            "--exact", is_flag=True, help="Decode images, video and sound and count, instead of believing headers."
        ),
        click.option(
            *("--media-by-header", "--media-metadata-by-header", "by_header"),
            is_flag=True,
            help="Media metadata of files whose first bytes are those of media.",
        ),
        click.option(
            *("--media-by-glob", "--media-metadata-by-glob", "by_glob"),
            metavar="P[,P]",
            help="Media metadata of files whose names fit a pattern, such as '*.jpg,*.png'.",
        ),
        click.option(
            *("--media-by-extension", "--media-metadata-by-extension", "by_extension"),
            is_flag=True,
            help="Media metadata of files with a media extension.",
        ),
    ):
        command = option(command)
    return command


class _Refused(click.UsageError):
    exit_code = 1


def take_media(options: dict[str, Any]) -> MediaChoice | None:
    """Take the options of `media_options`, but the depth, out of `options`; None if none was given."""
    if options["exact"] and options["headers_only"]:
        raise click.UsageError("--exact and --headers-only exclude each other.")
    by_extension, by_header = options.pop("by_extension"), options.pop("by_header")
    patterns: str | None = options.pop("by_glob")
    given = [
        *(["extension"] if by_extension else []),
        *(["glob"] if patterns is not None else []),
        *(["header"] if by_header else []),
    ]
    if len(given) > 1:
        raise click.UsageError("Media are found in one way: by extension, by glob or by header.")
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


def progress_option(command: Command) -> Command:
    """`--progress/--no-progress`, as Energon has it; without it a bar is shown on a terminal."""
    return click.option(
        "--progress/--no-progress", "show_progress", default=True, help="Show a progress bar on a terminal."
    )(command)


def with_progress_mode(command: click.Command) -> click.Command:
    """The command, which also takes `--progress MODE`: Energon's flag alone stays what it was."""
    places = [place for place, one in enumerate(command.params) if one.name == "show_progress"]
    for place in places:
        hide = ["--no-progress", "show_progress"]
        command.params[place : place + 1] = [
            click.Option(hide, flag_value=False, default=True, help="As --progress none."),
            progress_option_of(is_flag=False, flag_value="auto"),
        ]
    return command


def as_energon() -> bool:
    """Whether it is `penstock energon …` that runs."""
    return bool((click.get_current_context().obj or {}).get("as_energon"))


def refusal(what: str) -> click.UsageError:
    """Options that don't go together. Energon's commands end with 1 then, and only what can't be parsed with 2."""
    return _Refused(what) if as_energon() else click.UsageError(what)


def closing(words: str) -> str:
    """A last line of Energon's words, which scripts look for; nothing where another command runs."""
    return f"\n{words}" if as_energon() else ""


def tmp_path_option(command: Command) -> Command:
    """`--tmp-path`, for remote datasets."""
    return click.option("--tmp-path", help="Folder for temporary files of remote datasets.")(command)


def use_tmp_path(tmp_path: str | None) -> None:
    """Keep what this process derives in a folder of the user's choice."""
    if tmp_path is not None:
        import os

        os.environ["PENSTOCK_CACHE"] = tmp_path


def fields_of(source: Any, index: int) -> list[str]:
    """A sample in Energon's words, which scripts look for: a line for each field, its name, type, and what it is."""
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

"""What every command takes, before its name or after it: `-q -v --progress --json …`."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import click

from penstock._printable import shortened_part
from penstock._secrets import logger, redact
from penstock._settings import setting
from penstock.cli._commands import EXAMPLES, INNER_EXAMPLES
from penstock.cli._headings import group_options
from penstock.cli._hints import plain_numbers, usage_hint

Progress = Literal["auto", "plain", "json", "none"]
PROGRESS: tuple[Progress, ...] = ("auto", "plain", "json", "none")

_KEY = "penstock.cli"
_NO_NUMBER = re.compile(r"is not a valid (integer|float)( range)?\.")


def common_options(*, hidden: bool) -> list[click.Option]:
    """The options; hidden they stand in the help of `penstock` alone."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _keep, "hidden": hidden}
    return [
        click.Option(["-q", "--quiet"], is_flag=True, help="Print only results and errors.", **kept),
        click.Option(["-v", "--verbose"], is_flag=True, help="Also print the library's log messages.", **kept),
        progress_option_of(hidden=hidden),
        click.Option(
            ["--json"], is_flag=True, help="Print one JSON document to standard output, for errors too.", **kept
        ),
        click.Option(["--no-color"], is_flag=True, help="Don't use colors.", **kept),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks.", **kept),
    ]


def progress_option_of(**more: Any) -> click.Option:
    """`--progress MODE`."""
    text = (
        "How to report progress. auto: a bar on a terminal, otherwise a line every 30 seconds; plain: always lines; "
        "json: one JSON object per line, for messages too; none: nothing."
    )
    shown: dict[str, Any] = {"type": click.Choice(PROGRESS), "show_default": "auto", "help": text}
    return click.Option(["--progress"], expose_value=False, callback=_keep, **shown, **more)


def add_common(command: click.Command, path: str = "") -> click.Command:
    """The command, or all commands of a group, which take the options too, but for those with names of their own."""
    if isinstance(command, click.Group):
        inner = command.get_command

        def get_command(context: click.Context, name: str) -> click.Command | None:
            found = inner(context, name)
            return (
                None if found is None else add_common(with_example(copied(found), f"{path} {name}"), f"{path} {name}")
            )

        vars(command)["get_command"] = get_command  # only of this copy
        return group_options(command, path)
    taken = {name for one in command.params for name in _names(one)}
    command.params += [one for one in common_options(hidden=True) if not _names(one) & taken]
    return group_options(command, path)


def with_example(command: click.Command, path: str) -> click.Command:
    """The command, whose help ends with the example that there is of it."""
    example = EXAMPLES.get(path) or INNER_EXAMPLES.get(path)
    if not example or command.epilog:
        return command
    command.epilog = f"Example:\n  {example}"

    def format_epilog(context: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{command.epilog}\n")  # a command to copy is not wrapped

    vars(command)["format_epilog"] = format_epilog
    return command


def copied(command: click.Command) -> click.Command:
    """A command whose options may be added to."""
    command = copy.copy(command)
    command.params = list(command.params)
    return command


def wants_json(given: bool = False) -> bool:
    """Whether `--json` was said, to the command itself or before its name."""
    return given or bool(said().get("json"))


def said() -> dict[str, Any]:
    """What was said of the common options, shared by a command and those in it; and what reports its progress."""
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.setdefault(_KEY, {})


def progress_mode(known: Mapping[str, Any] | None = None) -> Progress:
    """How progress is to be shown, by what was `said`."""
    known = said() if known is None else known
    if known.get("quiet") and "progress" not in known:
        return "none"
    return cast(Progress, known.get("progress") or setting("PENSTOCK_PROGRESS") or "auto")


def is_quiet() -> bool:
    """Whether notes are left out."""
    return bool(said().get("quiet"))


def has_color() -> bool:
    """Whether colours may be shown."""
    return not (said().get("no_color") or setting("NO_COLOR"))


def in_plain_words(error: click.ClickException) -> str:
    """What click says of wrong usage, and what may have been meant."""
    # Cut first: the patterns below look at each place of a text, as far as it goes.
    told = error.format_message() if isinstance(error, click.BadParameter) else error.message
    text = shortened_part(redact(told))
    text = _NO_NUMBER.sub(lambda found: f"is not a {'whole ' if found[1] == 'integer' else ''}number.", text)
    text = plain_numbers(text)
    if not isinstance(error, click.UsageError):
        return text
    hint = usage_hint(error)
    return f"{text.rstrip()}{hint}" if not hint or text.rstrip().endswith((".", "?")) else f"{text.rstrip()}.{hint}"


def _names(option: click.Parameter) -> set[str]:
    return {*option.opts, *option.secondary_opts}


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if not value:
        return
    context.meta.setdefault(_KEY, {})[option.name] = value
    if option.name == "verbose":
        import logging

        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logger().setLevel(logging.DEBUG)
    if option.name == "no_color":
        context.color = False

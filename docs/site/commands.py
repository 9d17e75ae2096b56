"""The page of commands: each command's own help, and the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from penstock._keywords import Decoding, definitions
from penstock._settings import SETTINGS
from penstock.cli._help import COMMANDS
from penstock.cli.main import cli

OPTIONS_HEAD = """## Options of opening

Keywords of `penstock.open`, options of commands (`--eos-id`) and keys of recipes. A format without the trait raises
`ConfigError`.

| option | type | default | sets | trait |
|---|---|---|---|---|
"""

SETTINGS_HEAD = """## Settings

A command-line option overrides an environment variable, which overrides the settings file. The file is TOML with one
`key = value` per line; an unknown key is an error. `penstock doctor` shows each setting and where it comes from.

| variable | key in the file | option | sets |
|---|---|---|---|
"""


def cli_page() -> str:
    """Return the page in Markdown."""
    parts = ["# The command line\n\nThe help of every command.\n", help_of(cli, "penstock", None)]
    parts += [help_of(command, name, "penstock") for name, command in walk(cli, COMMANDS)]
    cells = (
        [f"`{one.variable}`", *(f"`{text}`" if text else "" for text in (one.key, one.option)), one.sets]
        for one in SETTINGS
    )
    rows = [f"| {' | '.join(row)} |" for row in cells]
    options = "\n".join(
        f"| `{name}` | `{getattr(kind, '__name__', None) or kind}` | `{one.default!r}` | "
        f"{one.help.replace('{whose}', 'the dataset')} | {f'`{one.needs[0]}`' if one.needs else ''} |"
        for name, kind, one in definitions(Decoding)
    )
    return "\n".join([*parts, OPTIONS_HEAD + options + "\n", SETTINGS_HEAD + "\n".join(rows) + "\n"])


def walk(group: click.Group, names: Iterable[str]) -> Iterator[tuple[str, click.Command]]:
    """Yield `(name, command)` of each command of a group, subcommands included."""
    context = click.Context(group)
    for name in names:
        command = group.get_command(context, name)
        if command is None:
            raise SystemExit(f"no command {name}")
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in walk(command, command.list_commands(context)))


def help_of(command: click.Command, name: str, parent: str | None) -> str:
    """Return the text of `-h` as shown on a terminal of 80 columns."""
    info = f"{parent} {name}" if parent else name
    above = click.Context(cli, info_name=parent, **cli.context_settings) if parent else None
    context = click.Context(command, info_name=name, parent=above, terminal_width=78, **command.context_settings)
    return f"## `{info}`\n\n```text\n{command.get_help(context)}\n```\n"

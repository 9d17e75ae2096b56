"""Help: options under headings, defaults in one style, and the text of every `--help`.

To accept changes of help, add a change fragment and run `REFRESH_HELP=1 pytest tests/cli/test_help.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import click
import pytest
from tests.conftest import GOLDEN
from tests.internals import HEADINGS, MAX_UNGROUPED, VERB_HEADINGS, cli, find_heading, main

from .test_options import COMMANDS

PINNED = GOLDEN / "help"

OURS = {name: command for name, command in COMMANDS.items() if not name.startswith("modalities ")}
"""The options of `modalities` keep that program's names, and no command of it has many."""


def visible_options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def help_of(name: str, command: click.Command) -> str:
    context = click.Context(
        command, info_name=f"penstock {name}", terminal_width=78, help_option_names=["-h", "--help"]
    )
    return command.get_help(context)


@pytest.mark.parametrize("name", OURS)
def test_every_option_has_a_heading(name: str) -> None:
    missing = [one.opts for one in visible_options(OURS[name]) if find_heading(one, name) is None]
    assert not missing, "add these options to HEADINGS in penstock/cli/_help.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_many_options_are_grouped_under_three_headings_or_more(name: str) -> None:
    shown = help_of(name, COMMANDS[name])
    headings = [line[:-1] for line in shown.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    count = len(visible_options(COMMANDS[name])) + 1
    expected = [*HEADINGS] if count > MAX_UNGROUPED else ["Options"]
    headings = [one for one in headings if one not in ("Example", "Examples", "Commands")]
    assert set(headings) <= set(expected)
    assert len(headings) == len(set(headings)) >= (3 if count > MAX_UNGROUPED else 1)
    for one in visible_options(COMMANDS[name]):
        assert any(name in shown for name in one.opts)


def test_the_table_of_headings_lists_only_options_that_exist() -> None:
    known = {name for command in OURS.values() for one in command.params for name in (*one.opts, *one.secondary_opts)}
    listed = {name for names in HEADINGS.values() for name in names}
    assert listed - known <= {"--help"}
    for verb, headings in VERB_HEADINGS.items():
        commands = [OURS[name] for name in (verb, f"energon {verb}") if name in OURS]
        own = {name for command in commands for one in command.params for name in one.opts}
        assert headings.keys() <= own, verb
        assert set(headings.values()) <= set(HEADINGS), verb


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_shown_in_brackets(name: str) -> None:
    """Give a default that isn't a value as `show_default="…"`, which help shows as `[default: …]`."""
    in_prose = [
        one.opts
        for one in visible_options(COMMANDS[name])
        if re.search(r"by default|[Dd]efaults?\b(?!\))", one.help or "")
    ]
    assert not in_prose
    assert "[default: (" not in help_of(name, COMMANDS[name])


def all_names(group: click.Group, context: click.Context, name: str = "") -> Iterator[str]:
    """Yield the name of every command and group, without `penstock`; the empty name is the root."""
    yield name
    for inner in group.list_commands(context):
        command, path = group.get_command(context, inner), f"{name} {inner}".strip()
        if isinstance(command, click.Group):
            yield from all_names(command, click.Context(command, info_name=inner, parent=context), path)
        else:
            yield path


def pinned_name(name: str) -> str:
    return f"{name.replace(' ', '-') or 'penstock'}.txt"


NAMES = [*all_names(cli, click.Context(cli))]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name or "penstock")
def test_help_is_as_pinned(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    shown, path = capsys.readouterr().out, PINNED / pinned_name(name)
    if os.environ.get("REFRESH_HELP"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert path.read_text() == shown, "add a change fragment, then run: REFRESH_HELP=1 pytest tests/cli/test_help.py"


def test_every_pinned_help_is_that_of_a_command() -> None:
    assert {path.name for path in PINNED.iterdir()} == set(map(pinned_name, NAMES))

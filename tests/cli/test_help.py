"""Help: options under headings, and defaults in one style."""

from __future__ import annotations

import re

import click
import pytest

from penstock.cli._headings import HEADINGS, MAX_UNGROUPED, VERB_HEADINGS, find_heading

from .test_options import COMMANDS

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
    assert not missing, "add these options to HEADINGS in penstock/cli/_headings.py"


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

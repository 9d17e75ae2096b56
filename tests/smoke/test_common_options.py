"""Every command takes `-q -v --progress --json`, and does as they say."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from tests.smoke.test_commands import USES, leaves, place  # noqa: F401

from penstock.cli.main import cli, main
from penstock.errors import MissingExtra

COMMON = {"--quiet", "--verbose", "--progress", "--json", "--no-color", "--debug"}
SERVING = ("view", "mount", "energon mount")
"""They print their document as they begin, and serve on."""
LONG = ("demo",)


def found(name: str) -> click.Command:
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    return command


@pytest.mark.parametrize("name", [*leaves(cli)])
def test_each_command_takes_them_and_has_an_example(name: str) -> None:
    command = found(name)
    assert {option for one in command.params for option in one.opts} >= COMMON
    assert f"Example:\n  penstock {name}" in (command.epilog or "")


@pytest.mark.parametrize("name", [*leaves(cli)])
def test_wrong_usage_of_each_command_is_one_json_document(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--json", "--no-such-option"])
    told = capsys.readouterr()
    assert (ended.value.code, json.loads(told.out)["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize("name", [name for name in USES if name not in (*SERVING, *LONG)])
def test_a_document_alone_where_it_is_quiet(
    name: str,
    place: Path,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    may_lack_extras: bool,
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), *USES[name].arguments.split(), "-q", "--json"])
    told = capfd.readouterr()
    if may_lack_extras and ended.value.code == MissingExtra.exit_status:
        pytest.skip(told.err)
    assert ended.value.code == 0, told.err
    assert isinstance(json.loads(told.out), dict)
    assert told.err == ""

"""Every command takes `-q -v --progress --json`, and does as they say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from tests.internals import SERVING as WAITING
from tests.internals import cli, main
from tests.smoke.test_commands import USES, leaves, place  # noqa: F401

from penstock.errors import PenstockError

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
    skip_what_lacks: Callable[[Any, str], None],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), *USES[name].arguments.split(), "-q", "--json"])
    told = capfd.readouterr()
    skip_what_lacks(ended.value.code, told.err)
    assert ended.value.code == 0, told.err
    assert isinstance(json.loads(told.out), dict)
    assert told.err == ""


@pytest.mark.parametrize("name", [name for name in USES if name not in (*SERVING, *LONG)])
def test_progress_is_shown_as_it_is_asked_for(
    name: str,
    place: Path,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    skip_what_lacks: Callable[[Any, str], None],
) -> None:
    """Of a short one: an object at its end, and no word in the other modes; `-v` changes nothing of what is made."""

    def told(*options: str) -> tuple[str, list[str]]:
        copy = place.with_name(f"{place.name}-{len(options)}")
        shutil.copytree(place, copy)
        os.chdir(copy)
        with pytest.raises(SystemExit) as ended:
            main([*options, *name.split(), *USES[name].arguments.split()])
        said = capfd.readouterr()
        skip_what_lacks(ended.value.code, said.err)
        assert ended.value.code == 0, said.err
        return said.out, said.err.splitlines()

    silent, notes = told("--progress=none")
    assert [one for one in notes if one.startswith("{")] == []
    assert told("--progress", "plain")[1] == notes, "no line of a short one"
    shown, lines = told("-v", "--progress", "json")
    objects = [one for one in map(json.loads, lines) if "level" not in one]
    assert len(shown.splitlines()) == len(silent.splitlines())
    if name in WAITING:
        assert objects == []
        return
    assert set(objects[-1]) == {"label", "done", "total", "unit", "rate", "left_seconds", "seconds", "extra"}
    assert objects[-1]["label"] in name.split()
    assert objects[-1]["total"] in (None, objects[-1]["done"]), "at its end"


@pytest.mark.parametrize("name", [name for name in USES if name not in LONG])
def test_an_error_of_each_command_is_one_document_and_a_traceback_where_it_is_asked_for(
    name: str,
    place: Path,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments = [*name.split(), "nothere.jsonl", *USES[name].arguments.split()[1:]]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    told = capfd.readouterr()
    error = json.loads(told.out)["error"]
    assert list(error) == ["code", "message", "path", "place", "found", "expected", "hint"]
    assert ended.value.code not in (0, 70)
    assert error["message"] in told.err
    with pytest.raises((PenstockError, click.ClickException)):
        main([*arguments, "--debug"])
    assert capfd.readouterr().out == ""

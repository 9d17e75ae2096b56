"""Options of version 0.2.0: each is taken as it was, or refused with the place where it is now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.called import called
from tests.internals import HINTS_INSTEAD as _INSTEAD
from tests.internals import RENAMED_COMMANDS as RENAMED
from tests.internals import cli

EARLIER: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "options-0.2.0.json").read_text()
)
"""Command → option → what it takes, and its choices, default and range."""

OTHER_DEFAULT = {
    ("shuffle", "--seed"): "was required",
    ("explain", "-n"): "of a step, all samples were listed and are",
    ("explain", "--limit"): "of a step, all samples were listed and are",
}

MOVED = {
    "prepare": {
        *("--fix-duplicates", "--no-progress", "--tmp-path", "--force-overwrite"),
        *(f"--media-metadata-by-{way}" for way in ("extension", "glob", "header")),
    },
    "prepare-media": {
        *("--no-progress", "--tmp-path"),
        *(f"--media-metadata-by-{way}" for way in ("extension", "glob", "header")),
    },
    "mount": {"-w", "--allow-slow"},
}
"""Command → its options that are now only those of `penstock energon`."""


def command_of(path: str) -> click.Command:
    command: click.Command = cli
    for name in path.split():
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None, path
        command = inner
    return command


def takes(option: click.Option) -> str:
    return "flag" if option.is_flag else "values" if option.multiple else "value"


def is_progress_of_energon(path: str, name: str) -> bool:
    """`--progress` without a value was of Energon's sake."""
    return path in ("prepare", "prepare-media") and name == "--progress"


@pytest.mark.parametrize("path", sorted(EARLIER.keys() - RENAMED.keys()))
def test_options_of_0_2_0_are_taken_as_they_were(path: str) -> None:
    command = command_of(path)
    context = click.Context(command, info_name=path.rpartition(" ")[2])
    parser = command.make_parser(context)
    known: dict[str, Any] = {**parser._long_opt, **parser._short_opt}  # pyright: ignore
    for name, was in EARLIER[path].items():
        if name in MOVED.get(path, ()):
            assert name not in known
            continue
        option = known[name].obj
        if is_progress_of_energon(path, name):
            continue
        assert takes(option) == was["takes"], name
        assert set(was.get("choices", ())) <= set(getattr(option.type, "choices", ())), name
        least, most = (getattr(option.type, end, None) for end in ("min", "max"))
        assert least is None or least <= was.get("min", least - 1), name
        assert most is None or most >= was.get("max", most + 1), name
        if (path, name) not in OTHER_DEFAULT and "default" in was:
            assert repr(option.default) == was["default"], name


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in MOVED.items() for name in sorted(names)])
def test_options_that_moved_name_their_place(verb: str, name: str, tmp_path: Path) -> None:
    done = called(verb, tmp_path, name, "x")
    assert (done.returncode, f"`penstock energon {verb}`" in done.stderr) == (2, True), done.stderr
    assert name in EARLIER[f"energon {verb}"]


@pytest.mark.parametrize("verb", RENAMED)
def test_options_of_verbs_that_are_gone_are_those_of_another_or_named(verb: str, tmp_path: Path) -> None:
    new = RENAMED[verb].split()[0]
    known = {name for option in command_of(new).params for name in (*option.opts, *option.secondary_opts)}
    for name in EARLIER[verb].keys() - known - {"--split-parts"}:
        done = called(new, tmp_path, name, "x")
        assert (done.returncode, _INSTEAD[new, name] in done.stderr) == (2, True), name

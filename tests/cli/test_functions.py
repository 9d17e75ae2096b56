"""The verbs as functions: an option of a command is an argument of its function, by its name and with its default."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import click
import pytest

import penstock as ps
from penstock._keywords import Reshaping
from penstock.prepare.energon.run import prepare_webdataset
from penstock.types import OpenOptions

VERBS = (
    *("pack", "index", "prepare", "merge", "shuffle", "split", "filter", "find", "diff"),
    *("convert", "verify", "repair", "report"),
)
OTHERWISE: dict[str, dict[str, str | None]] = {
    "pack": {"field": "field", "join": "join"},
    "index": {"no_validate": "validate"},
    "prepare": {
        **dict.fromkeys(("by_extension", "by_glob", "by_header", "media_metadata"), "media"),
        "no_sqlite": "sqlite",
        "skip_dataset_yaml": None,  # without a sample_type it stays
        "show_progress": "progress",
        "non_interactive": None,  # a function asks no questions
        "fix_duplicates": None,  # Energon's, without effect
        "tmp_path": None,  # PENSTOCK_CACHE
    },
    "shuffle": {"memory_mb": "memory_bytes"},
    "convert": {"format_name": "format", "more": None},
    "verify": {
        "format_name": "format",
        **dict.fromkeys(("write_manifest", "replace_manifest"), None),  # write_side_file
        **dict.fromkeys(("part", "finish", "no_work", "restart", "work"), None),  # verify_shared
    },
    "repair": {"format_name": "format"},
}
"""Command → its options that a function takes otherwise: the argument, of another type or sense; None: none."""

PLACES = {"output": ("output", "target", "folder")}
OWN = ("as_json",)


def arguments_of(verb: str) -> dict[str, Any]:
    """Name → default of what a function takes; of open options and writers' None."""
    functions = [getattr(ps, verb), *([prepare_webdataset] if verb == "prepare" else [])]
    parameters = [one for function in functions for one in inspect.signature(function).parameters.values()]
    known = {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD}
    if verb != "prepare" and any(one.kind is one.VAR_KEYWORD for one in parameters):
        known |= {name: getattr(OpenOptions(), name) for name in OpenOptions.__slots__ if name not in known}
    return known


@pytest.mark.parametrize("verb", VERBS)
def test_options_are_arguments(verb: str) -> None:
    command: click.Command = importlib.import_module(f"penstock.cli.cmd_{verb}").command
    known, otherwise = arguments_of(verb), OTHERWISE.get(verb, {})
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in OWN]
    assert set(otherwise) <= {one.name for one in options}
    for option in options:
        name, default = str(option.name), option.to_info_dict()["default"]
        if name in otherwise:
            assert otherwise[name] is None or otherwise[name] in known, name
        elif name in PLACES:
            assert known.keys() & set(PLACES[name])
        elif name == "drop_planes":
            assert default is None, "of tokens, taken with the other options"
            assert name in Reshaping.__annotations__
        elif verb in ("merge", "shuffle", "split") and name in ("maxcount", "maxsize", "pattern", "prefix_keys"):
            assert not default, "of tars, which take them with the other options"
        elif verb == "convert" and name not in known:
            assert default is None, "of a writer"
        else:
            assert name in known, f"ps.{verb} has no {name}="
            if option.required:
                assert known[name] is inspect.Parameter.empty
            else:
                assert (known[name] or None) == (default or None), f"the default of {name}="

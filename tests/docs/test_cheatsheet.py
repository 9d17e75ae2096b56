"""Commands and calls of the cheat sheet and the troubleshooting page use verbs, options and arguments that exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from tests.internals import cli

import penstock as ps

DOCS = Path(__file__).parents[2] / "docs"
SPANS = {
    page: re.findall(r"`([^`]+)`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    for page in ("cheatsheet", "troubleshooting")
}
COMMANDS = [span for spans in SPANS.values() for span in spans if re.match(r"penstock [a-z][a-z-]* ", span)]
CALLS = [span for span in SPANS["cheatsheet"] if re.search(r"\bps\.\w+\(", span)]


@pytest.mark.parametrize("text", COMMANDS)
def test_command(text: str) -> None:
    _, verb, *words = [word for word in shlex.split(text) if word != "…"]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    if words != ["--help"]:
        command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize("text", CALLS)
def test_call(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_facade(node.func.value):
            function: Any = getattr(ps, node.func.attr)
            parameters = inspect.signature(function).parameters
            given = [keyword.arg for keyword in node.keywords if keyword.arg not in parameters]
            inspect.signature(function).bind(*node.args, **{k.arg: 0 for k in node.keywords if k.arg in parameters})
            further = _further_options(function, parameters)
            assert further is None or set(given) <= further, given


def _is_facade(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "ps"


def _further_options(function: Any, parameters: Any) -> set[str] | None:
    """Names of `**options: Unpack[…]`; None for any."""
    for one in parameters.values():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            name = re.fullmatch(r"Unpack\[(\w+)\]", one.annotation)
            return None if name is None else set(function.__globals__[name[1]].__annotations__)
    return set()


def test_cells() -> None:
    assert len(COMMANDS) > 40
    assert len(CALLS) > 20

"""`penstock lineage TARGET`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from penstock._printable import printable
from penstock.cli._output import counted, emit, json_option, note

_SHOWN_CHARACTERS = 100


@click.command()
@click.argument("target")
@click.option(
    "--look-in",
    multiple=True,
    metavar="DIR",
    help="Also look for inputs in this directory; can be given several times.",
)
@json_option
def command(target: str, look_in: tuple[str, ...], as_json: bool) -> None:
    """Show the tree of inputs and commands that made a dataset.

    Inputs are identified by the digests recorded in side files.
    """
    import msgspec

    from penstock.look.lineage import lineage

    found = lineage(target, look_in=look_in)
    if _lacks(found):
        note("some inputs were not found. If they are in another folder, name it with --look-in DIR")
    emit(msgspec.to_builtins(found), as_json=as_json, text=lambda: "\n".join(_lines(found, 0)))


def _lacks(origin: Any) -> bool:
    return origin.state == "not found" or any(map(_lacks, origin.inputs))


def _lines(origin: Any, depth: int) -> Iterator[str]:
    options = {name: value for name, value in origin.made_by.items() if name != "command" and value is not None}
    said = [origin.made_by.get("command"), origin.tokenizer, json.dumps(options) if options else None]
    how = ", ".join(printable(str(one))[:_SHOWN_CHARACTERS] for one in said if one)
    count = f", {counted(origin.samples, 'sample')}" if origin.samples is not None else ""
    state = {"same": "unchanged", "output": "output"}.get(origin.state, origin.state)
    yield f"{'  ' * depth}{printable(origin.path)}: {state}{count}{f'; {how}' if how else ''}"
    for one in origin.inputs:
        yield from _lines(one, depth + 1)

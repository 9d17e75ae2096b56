"""`penstock plan RECIPE`."""

from __future__ import annotations

import importlib
import time
from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option, note, table
from penstock.cli._recipes import open_run, recipe_options


@click.command()
@recipe_options
@click.option("--steps", type=click.IntRange(1), help="Steps of the run; by default until every source was read once.")
@json_option
def command(recipe: str, steps: int | None, as_json: bool, **options: Any) -> None:
    """What a run will read: epochs and tokens of each source, repeats, padding, bytes, requests, warnings."""
    from penstock.load.plan import plan

    importlib.import_module("penstock.recipe")  # what importing takes is no part of the plan

    began = time.perf_counter()
    data, batch = open_run(recipe, options)
    opened = time.perf_counter() - began
    found = plan(
        data,
        global_batch=batch.get("global_batch"),
        world=batch.get("world"),
        steps=steps,
        opened_seconds=opened,
    )
    emit({"recipe": recipe, **found}, as_json=as_json, text=lambda: _text(recipe, found))
    if not as_json:
        for warning in found["warnings"]:
            note(f"warning: {warning}")


def _text(recipe: str, found: dict[str, Any]) -> str:
    rows = [
        (
            one["path"],
            f"{one['samples']:,}",
            f"{one['reads']:,}",
            f"{one['epochs']:,.2f}",
            f"{one['share']:.2%}",
            "-" if one["tokens"] is None else f"{one['tokens']:,}",
            "-" if one["padding"] is None else f"{one['padding']:.1%}",
            "-" if one["bytes"] is None else human_bytes(one["bytes"]),
            f"{one['requests']:,}",
        )
        for one in found["sources"]
    ]
    head = ("source", "samples", "reads", "epochs", "share", "tokens", "padding", "bytes", "requests")
    steps = "" if found["steps"] is None else f", {found['steps']:,} steps of {found['global_batch']:,}"
    tokens = "" if found["tokens"] is None else f", {found['tokens']:,} tokens"
    cache = f"cache for remote data: {human_bytes(found['cache_bytes'])}"
    start = f"first batch after about {found['start_up_seconds']:.2f} s"
    return f"{recipe}: {found['samples']:,} samples{steps}{tokens}\n{table(rows, header=head)}\n{cache}; {start}"

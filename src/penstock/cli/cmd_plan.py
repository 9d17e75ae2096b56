"""`penstock plan RECIPE`."""

from __future__ import annotations

import dataclasses
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._energon import refuse_given
from penstock.cli._output import emit, human_bytes, json_option, note, table
from penstock.cli._recipes import open_run, recipe_options
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.load.metrics import Metrics


@click.command()
@recipe_options
@click.option(
    "--steps",
    type=click.IntRange(1),
    show_default="until every source was read once",
    help="Number of steps of the run.",
)
@click.option(
    "--profile",
    type=click.IntRange(1),
    help="Read this many steps as rank 0, and report which stage is the bottleneck.",
)
@click.option(
    "--workers", type=click.IntRange(0), default=2, show_default=True, help="Number of loader threads for --profile."
)
@json_option
def command(recipe: str, steps: int | None, profile: int | None, workers: int, as_json: bool, **options: Any) -> None:
    """Show the samples, epochs, tokens and bytes that a run will read.

    Lists them for each source, with padding and requests, and prints warnings, for example about
    repeated data.
    """
    # What importing takes is no part of the plan.
    import penstock.recipe  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from penstock.load.plan import plan

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
    if profile is None:
        refuse_given(click.get_current_context(), ("workers",), "This option needs --profile")
    measured = None if profile is None else _measured(data, batch, profile, workers)
    profiled = {} if measured is None else {"profile": dataclasses.asdict(measured)}
    table = "" if measured is None else f"\n\n{measured.profile()}"
    emit({"recipe": recipe, **found, **profiled}, as_json=as_json, text=lambda: _text(recipe, found) + table)
    if not as_json:
        for warning in found["warnings"]:
            note(f"warning: {warning}")


def _measured(data: Any, batch: dict[str, Any], steps: int, workers: int) -> Metrics:
    """The loader's metrics after some steps of rank 0, read as fast as possible."""
    from penstock._kinds import is_lane_stream, is_stream
    from penstock.load import Loader

    if batch.get("global_batch") is None:
        raise ConfigError(
            "--profile needs the batch size", hint="Pass --global-batch, or set it in the recipe's `batch`"
        )
    tail = None if is_stream(data) or is_lane_stream(data) else batch.get("tail", "pad")
    world = batch.get("world") or 1
    loader = Loader(data, batch["global_batch"], rank=0, world=world, workers=workers, tail=tail)
    batches = iter(loader)
    for _ in islice(batches, steps * loader.global_batch // (loader.world * loader.micro_batch)):
        pass
    batches.close()
    return loader.metrics()


def _text(recipe: str, found: dict[str, Any]) -> str:
    from penstock.view.facts.run import estimated

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
    steps = ""
    if found["steps"] is not None:
        steps = f", {found['steps']:,} steps (0 to {found['steps'] - 1:,}) of {found['global_batch']:,}"
    tokens = "" if found["tokens"] is None else f", {found['tokens']:,} tokens"
    cache = f"cache for remote data: {human_bytes(found['cache_bytes'])}"
    start = f"first batch after about {found['start_up_seconds']:.2f} s"
    known = f"\npadding, bytes and requests are {how}" if (how := estimated(found["sources"])) else ""
    told = f"{table(rows, header=head)}{known}\n{cache}; {start}"
    return f"{recipe}: {found['samples']:,} samples{steps}{tokens}\n{told}"

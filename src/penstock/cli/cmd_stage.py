"""`penstock stage RECIPE|DATASET`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option
from penstock.cli._recipes import open_dataset_or_run, recipe_options


@click.command()
@recipe_options
@click.option("--hosts", type=click.IntRange(1), required=True, help="Number of hosts of the run.")
@click.option("--host", type=click.IntRange(0), required=True, help="This host, from 0.")
@click.option("--steps", type=click.IntRange(1), help="Steps of the run; by default until every source was read once.")
@json_option
def command(recipe: str, hosts: int, host: int, steps: int | None, as_json: bool, **options: Any) -> None:
    """Copy to this host's cache what its ranks will read.

    RECIPE may be a dataset: with --seed and --lanes in a shuffled order, else once in its own. Ranks are --world,
    by default one a host; host h of H has the h-th of H equal runs of them.
    """
    from penstock.load.stage import stage

    data, batch = open_dataset_or_run(recipe, options)
    world, global_batch = batch.get("world"), batch.get("global_batch")
    found = stage(data, hosts=hosts, host=host, world=world, global_batch=global_batch, steps=steps)
    text = (
        f"{recipe}: host {host} of {hosts} reads {found['files']:,} files, {human_bytes(found['bytes'])}; "
        f"{human_bytes(found['fetched_bytes'])} were fetched, and all of it is in the cache now"
    )
    nothing = f"{recipe}: nothing is remote, so there is nothing to stage"
    emit({"recipe": recipe, **found}, as_json=as_json, text=text if found["files"] else nothing)

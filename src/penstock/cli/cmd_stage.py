"""`penstock stage RECIPE|DATASET`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option
from penstock.cli._recipes import open_dataset_or_run, recipe_options


@click.command()
@recipe_options
@click.option("--hosts", type=click.IntRange(1), required=True, help="Number of hosts of the run.")
@click.option("--host", type=click.IntRange(0), required=True, help="Number of this host, from 0.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    show_default="until every source was read once",
    help="Number of steps of the run.",
)
@json_option
def command(recipe: str, hosts: int, host: int, steps: int | None, as_json: bool, **options: Any) -> None:
    """Pre-download the remote files that this host will read.

    Files are copied to the cache directory; see `penstock cache`. RECIPE can also be a dataset, which is read once in
    order, or shuffled with --seed. The --world ranks (one per host if omitted) are divided among hosts in consecutive
    blocks of equal size.
    """
    from penstock.load.stage import stage

    data, batch = open_dataset_or_run(recipe, options)
    world, global_batch = batch.get("world"), batch.get("global_batch")
    found = stage(data, hosts=hosts, host=host, world=world, global_batch=global_batch, steps=steps)
    text = (
        f"{recipe}: host {host} of {hosts} reads {found['files']:,} files, {human_bytes(found['bytes'])}; "
        f"{human_bytes(found['fetched_bytes'])} downloaded now, all files are in the cache"
    )
    nothing = f"{recipe}: all data is local, so there is nothing to stage"
    emit({"recipe": recipe, **found}, as_json=as_json, text=text if found["files"] else nothing)

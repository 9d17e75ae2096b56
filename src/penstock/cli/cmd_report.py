"""`penstock report TARGET -o FILE.html`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._opening import dataset_argument, excludes_option, flavor_option, opening_options
from penstock.cli._output import follow_links_option, human_bytes, json_option


@click.command()
@dataset_argument("target")
@click.option("-o", "--output", required=True, help="The page: a file or a URL.")
@click.option("--examples", type=click.IntRange(0, 48), default=12, show_default=True, help="Samples to show.")
@click.option(
    "--depth",
    type=click.Choice(["none", "quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How deep a dataset is checked, as `penstock verify` does.",
)
@click.option("--step", type=click.IntRange(0), default=0, show_default=True, help="Of a run: batch to show, from 0.")
@click.option("--steps", type=click.IntRange(1), help="Of a run: number of steps; by default all sources once.")
@click.option("--global-batch", type=click.IntRange(1), help="Of a run: samples per step, over all ranks.")
@click.option("--state", help="Of a run: saved state (JSON), which records the batch size of each step.")
@click.option("--world", type=click.IntRange(1), help="Of a run: data-parallel ranks.")
@click.option("--seed", type=int, help="Of a run: seed of the order, where the recipe has none.")
@click.option("--mode", type=click.Choice(["train", "val"]), help="Of a metadataset; see `penstock plan`.")
@opening_options("the dataset")
@flavor_option
@excludes_option
@click.option("--tokenizer", help="tokenizer.json or its folder, or a name in the Hub's local cache: show ids as text.")
@click.option("--overwrite", is_flag=True, help="Replace the report that is there.")
@click.option("--trust", is_flag=True, help="Run code that comes with the data.")
@dry_run_option
@follow_links_option
@json_option
def command(target: str, output: str, as_json: bool, **options: Any) -> None:
    """What there is to see of a dataset or a run, as one page: no script, no network, the same bytes each time."""
    import msgspec

    from penstock.view.report import report

    found = report(target, output, **options)
    text = f"{found.path}: a {found.kind}, {found.examples:,} examples, {human_bytes(found.size_bytes)}"
    emit_written(msgspec.to_builtins(found), [text], (target,), (found.path,), options, as_json=as_json)

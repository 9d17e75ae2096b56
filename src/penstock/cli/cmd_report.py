"""`penstock report TARGET -o FILE.html`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._opening import dataset_argument, excludes_option, flavor_option, opening_options
from penstock.cli._output import counted, follow_links_option, human_bytes, json_option
from penstock.cli._samples import tokenizer_option


@click.command()
@dataset_argument("target")
@click.option("-o", "--output", required=True, metavar="PATH", help="Path or URL of the HTML page.")
@click.option(
    "-n",
    "--limit",
    "examples",
    type=click.IntRange(0, 48),
    default=12,
    show_default=True,
    help="Number of samples to show.",
)
@click.option(
    "--depth",
    type=click.Choice(["none", "quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How thoroughly to check a dataset, as in `penstock verify`.",
)
@click.option("--step", type=click.IntRange(0), default=0, show_default=True, help="Step to show, from 0.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    show_default="until every source was read once",
    help="Number of steps of the run.",
)
@click.option("--global-batch", type=click.IntRange(1), help="Samples per step, over all ranks.")
@click.option(
    "--state", metavar="FILE", help="Saved state (JSON) of the run, which records the batch size of each step."
)
@click.option("--world", type=click.IntRange(1), help="Number of data-parallel ranks.")
@click.option("--seed", type=int, show_default="0", help="Seed of the order, if the recipe doesn't set it.")
@click.option("--mode", type=click.Choice(["train", "val"]), help="How to read a metadataset; see `penstock plan`.")
@opening_options("the dataset")
@flavor_option
@excludes_option
@tokenizer_option
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
@click.option("--trust", is_flag=True, help="Run code stored with the data.")
@dry_run_option
@follow_links_option
@json_option
def command(target: str, output: str, as_json: bool, **options: Any) -> None:
    """Write a self-contained HTML page about a dataset or a run.

    The page has no scripts and loads nothing from the network, and the same data gives the same bytes. Run options
    apply if TARGET is a recipe.
    """
    import msgspec

    from penstock.view.report import report

    found = report(target, output, **options)
    text = f"{found.path}: {found.kind} with {counted(found.examples, 'example')}, {human_bytes(found.size_bytes)}"
    emit_written(msgspec.to_builtins(found), [text], (target,), (found.path,), options, as_json=as_json)

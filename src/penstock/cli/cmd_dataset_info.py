"""`penstock energon info PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._energon import refuse_given
from penstock.cli._output import emit, follow_links_option, human_bytes, json_option


@click.command()
@click.argument("path")
@click.option("--split-config", metavar="NAME", show_default="split.yaml", help="File that assigns shards to splits.")
@click.option(
    "--dataset-config",
    default="dataset.yaml",
    show_default=True,
    metavar="NAME",
    help="File that defines the sample type.",
)
@follow_links_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    path: str,
    split_config: str | None,
    dataset_config: str,
    follow_links: bool,
    as_json: bool,
) -> None:
    """Show samples, shards, splits and sample type of a dataset, a JSONL file or a directory of media."""
    from penstock.check.summary import summarise
    from penstock.formats import sniff
    from penstock.formats.samples.webdataset.source import raw_details
    from penstock.store.place import dataset_at

    place = dataset_at(path, follow_links=follow_links).bare()
    chosen = sniff(place.store, place.path)
    if chosen.name == "webdataset":
        found = raw_details(place.store, place.path, split_config=split_config, dataset_config=dataset_config)
    else:
        refuse_given(context, ("split_config", "dataset_config"), "Only a prepared WebDataset has these files")
        options: dict[str, Any] = {"flavor": "energon"} if chosen.name == "jsonl" else {}
        options["follow_links"] = follow_links
        summary = summarise(path, format=chosen.name, **options)
        found = {"format": chosen.name, "samples": summary["samples"], "size_bytes": summary["size_bytes"]}
    emit({"path": path, **found}, as_json=as_json, text=lambda: _text(path, found))


def _text(path: str, found: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [(f"  split {split}", text) for split, text in value.items()]
        elif name.endswith("_bytes"):
            rows.append((f"  {name.removesuffix('_bytes').replace('_', ' ')}", human_bytes(value)))
        else:
            rows.append((f"  {name.replace('_', ' ')}", f"{value:,}" if isinstance(value, int) else str(value)))
    width = max(len(label) for label, _ in rows)
    return "\n".join([path, *(f"{label.ljust(width)}  {value}" for label, value in rows)])

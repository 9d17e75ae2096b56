"""`penstock preview PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._energon import refuse_given
from penstock.cli._output import follow_links_option, note


@click.command()
@click.argument("path")
@click.option("--split", "--split-parts", "split", help="Which split; of several the first. By default train.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Samples to show; on a terminal as many as you like.")
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first sample.")
@click.option("--key", help="Begin at the sample with this key.")
@click.option("--pictures/--no-pictures", default=None, help="Small pictures; by default on a terminal.")
@click.option("--dataset-config", help="Taken from Energon; parts are shown as they are stored.")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@follow_links_option
def command(
    path: str,
    split: str | None,
    count: int | None,
    start: int,
    key: str | None,
    pictures: bool | None,
    dataset_config: str | None,
    format_name: str | None,
    follow_links: bool,
) -> None:
    """Show samples: the table of parts, texts, sizes of images, and small pictures where the terminal can."""
    import shutil
    import sys

    from penstock.errors import Excluded
    from penstock.view.preview import Display, show_sample

    if key is not None:
        refuse_given(click.get_current_context(), ("start",), "--key says where to begin")
    if dataset_config is not None:
        note(f"--dataset-config {dataset_config}: parts are shown as they are stored")
    if split is not None and "," in split:
        note(f"--split {split}: the first of them is shown")
    on_terminal = sys.stdout.isatty()
    source = _open(path, None if split is None else split.split(",")[0], format_name, follow_links)
    if key is not None:
        start = source.index_of(key)
    rows = 12 if (on_terminal if pictures is None else pictures) else 0
    display = Display(width=shutil.get_terminal_size().columns, picture_rows=rows)
    asks = count is None and on_terminal and sys.stdin.isatty()
    stop = len(source) if asks else min(len(source), start + (count or 1))
    for index in range(start, stop):
        try:
            shown = show_sample(source[index], display)
        except Excluded as error:
            shown = error.what
        click.echo(f"\nsample {index} of {len(source):,}\n{shown}", color=True)
        if asks and index + 1 < stop and not click.confirm("Next?", default=True):
            return


def _open(path: str, split: str | None, format_name: str | None, follow_links: bool) -> Any:
    from penstock.formats import get_format, open_source, sniff
    from penstock.store.place import place_of

    place = place_of(path)
    name = format_name or sniff(place.store, place.path).name
    more: dict[str, Any] = {"raw": True} if name in ("webdataset", "folder", "jsonl") else {}
    more |= {"flavor": "energon"} if name == "jsonl" else {}
    if get_format(name).traits.splits:
        more["split"] = split
    elif split is not None:
        raise click.UsageError(f"{path} has no splits: leave out --split.")
    return open_source(path, format=name, follow_links=follow_links, **more)

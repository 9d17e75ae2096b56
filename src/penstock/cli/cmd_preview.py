"""`penstock preview PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._common import has_color
from penstock.cli._energon import as_energon
from penstock.cli._opening import excludes_option
from penstock.cli._output import emit, follow_links_option, json_option, note
from penstock.cli._samples import decoder, first_of, plain_at, require_one, sample_options, visible


@click.command()
@click.argument("path")
@click.option("--split", "--split-parts", "split", help="Which split; of several the first. By default train.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Samples to show; on a terminal as many as you like.")
@sample_options
@click.option("--pictures/--no-pictures", default=None, help="Small pictures; by default on a terminal.")
@click.option("--dataset-config", help="Taken from Energon; parts are shown as they are stored.")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@excludes_option
@follow_links_option
@json_option
def command(
    path: str,
    split: str | None,
    count: int | None,
    start: int | None,
    index: int | None,
    key: str | None,
    tokenizer: str | None,
    show_all: bool,
    pictures: bool | None,
    dataset_config: str | None,
    format_name: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show samples: the table of parts, texts, sizes of images, and small pictures where the terminal can."""
    import shutil
    import sys

    from penstock.errors import Excluded
    from penstock.view.preview import Display, show_fields, show_sample

    require_one()
    if dataset_config is not None:
        note(f"--dataset-config {dataset_config}: parts are shown as they are stored")
    if split is not None and "," in split:
        note(f"--split {split}: the first of them is shown")
    on_terminal = sys.stdout.isatty()
    source = _open(path, None if split is None else split.split(",")[0], format_name, options)
    decode, first = decoder(tokenizer), first_of(source, start, index, key)
    pictures = (on_terminal if pictures is None else pictures) and has_color()  # pictures are made of colours
    display = Display(width=shutil.get_terminal_size().columns, picture_rows=12 if pictures else 0)
    asks = count is None and on_terminal and sys.stdin.isatty() and not as_json
    stop = len(source) if asks else min(len(source), first + (count or 1))
    if as_json:
        samples = [{"index": at} | plain_at(source, at, decode, show_all=show_all) for at in range(first, stop)]
        emit({"path": path, "samples": samples}, as_json=True, text="")
        return
    for at in range(first, stop):
        try:
            sample = source[at]
            shown = show_sample(visible(sample, decode, show_all=show_all), display)
        except Excluded as error:
            sample, shown = {}, error.what
        fields = f"Sample {at}\n{show_fields(sample)}\n\n" if as_energon() else ""
        click.echo(f"{fields}\nsample {at} of {len(source):,}\n{shown}", color=has_color())
        if at == first and decode is None and "tokens" in sample:
            note("ids of tokens; --tokenizer FILE shows their text")
        if asks and at + 1 < stop and not click.confirm("Next?", default=True):
            return


def _open(path: str, split: str | None, format_name: str | None, options: dict[str, Any]) -> Any:
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
    return open_source(path, format=name, **options, **more)

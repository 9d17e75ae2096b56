"""`penstock preview PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._common import has_color
from penstock.cli._energon import as_energon, fields_of
from penstock.cli._opening import dataset_argument, excludes_option, flavor_option, planes_option
from penstock.cli._output import emit, follow_links_option, json_option, note
from penstock.cli._pictures import pictures_option, stored_pictures, way_of
from penstock.cli._samples import (
    decoder,
    first_of,
    plain_at,
    require_one,
    sample_options,
    warn_of,
    with_command_options,
)


@click.command()
@dataset_argument("path")
@click.option("--split", "--split-parts", "split", help="Which split; of several the first. By default train.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Samples to show; on a terminal as many as you like.")
@sample_options
@pictures_option
@click.option("--dataset-config", help="Taken from Energon; parts are shown as they are stored.")
@click.option("--format", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous; the width of raw tokens, such as uint16.")
@click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say.")
@flavor_option
@excludes_option
@planes_option
@click.option("--trust", is_flag=True, help="Decode pickled columns and run stored code of the dataset.")
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
    pictures: str | None,
    dataset_config: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show samples: the table of parts, texts, sizes of images, and small pictures where the terminal can."""
    import shutil
    import sys

    from penstock.view.draw.terminal import PICTURE_ROWS, sample
    from penstock.view.facts.samples import sample_at

    require_one()
    if dataset_config is not None:
        note(f"--dataset-config {dataset_config}: parts are shown as they are stored")
    if split is not None and "," in split:
        note(f"--split {split}: the first of them is shown")
    on_terminal = sys.stdout.isatty()
    opened = _open(path, None if split is None else split.split(",")[0], tokenizer, options)
    first = first_of(opened.source, start, index, key)
    way = way_of(pictures, as_json=as_json)
    width = shutil.get_terminal_size().columns
    asks = count is None and on_terminal and sys.stdin.isatty() and not as_json
    stop = len(opened) if asks else min(len(opened), first + (count or 1))
    if as_json:
        decode, source = decoder(tokenizer), opened.source
        samples = [{"index": at} | plain_at(source, at, decode, show_all=show_all) for at in range(first, stop)]
        emit({"path": path, "samples": samples}, as_json=True, text="")
        return
    failed: list[Exception] = []
    for at in range(first, stop):
        found = with_command_options(sample_at(opened, at, show_all=show_all, failed=failed.append))
        draws = None if way is None else stored_pictures(opened, at, way, width - 2, PICTURE_ROWS)
        lines = sample(found, width, draws)
        fields = fields_of(opened.source, at) if as_energon() else ()
        click.echo("\n".join((*fields, "", f"sample {at} of {len(opened):,}", *lines)), color=has_color())
        if at == first and opened.vocabulary is None and any(one.kind == "tokens" for one in found.panels):
            note("ids of tokens; --tokenizer FILE shows their text")
        if asks and at + 1 < stop and not click.confirm("Next?", default=True):
            break
    if failed:
        raise failed[0]


def _open(path: str, split: str | None, tokenizer: str | None, options: dict[str, Any]) -> Any:
    from penstock.formats import find_format, get_format
    from penstock.store.place import place_of
    from penstock.types import OpenOptions
    from penstock.view.facts.opening import open_target

    if split is not None:
        known = OpenOptions(layout=options["layout"], eos_id=options["eos_id"])
        name = find_format(place_of(path), options["format"], known).name
        if not get_format(name).traits.splits:
            raise click.UsageError(f"{path} has no splits: leave out --split.")
    opened = open_target(path, split=split, tokenizer=tokenizer, **options)
    _ = opened.vocabulary  # one that is not there is an error before anything is read
    warn_of(opened.other_tokenizer)
    return opened

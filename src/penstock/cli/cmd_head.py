"""`penstock head PATH`."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

import click

from penstock._printable import printable
from penstock.cli._opening import dataset_argument, excludes_option, flavor_option, opening_options
from penstock.cli._output import emit, follow_links_option, json_option, say
from penstock.cli._pictures import (
    ROWS_OF_A_LINE,
    pictures_option,
    show_pictures,
    show_tables,
    stored_pictures,
    way_of,
)
from penstock.cli._samples import (
    plain_at,
    require_one,
    sample_options,
    warn_of,
    with_command_options,
)

_LOOKED_AT = 100


@click.command()
@dataset_argument("path")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    show_default="5, or 1 with --index or --key",
    help="Number of samples to show.",
)
@opening_options("the dataset")
@flavor_option
@click.option("--columns", metavar="NAME,…", help="Only show these fields.")
@click.option("--trust", is_flag=True, help="Also decode pickled columns, which runs code stored with the data.")
@excludes_option
@sample_options
@pictures_option
@follow_links_option
@json_option
def command(
    path: str,
    limit: int | None,
    columns: str | None,
    start: int | None,
    index: int | None,
    key: str | None,
    tokenizer: str | None,
    show_all: bool,
    pictures: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the first samples, or the samples you choose.

    Each sample is one line, or with --pictures a table of its fields with texts, sizes and pictures. Use --json to get
    the values.
    """
    from penstock.formats._invalid_lines import skipping_invalid_lines
    from penstock.view.draw.terminal import line
    from penstock.view.facts.opening import open_target
    from penstock.view.facts.samples import sample_at

    require_one()
    options = {name: value for name, value in options.items() if name != "flavor" or value is not None}
    options["columns"] = None if columns is None else columns.split(",")
    way = way_of(pictures, as_json=as_json)
    with skipping_invalid_lines():
        if columns is not None:
            _require_columns(path, options)
        if as_json:
            _as_json(path, (start, index, key), limit, tokenizer, options, show_all=show_all)
            return
    opened = open_target(path, tokenizer=tokenizer, **options)
    _ = opened.vocabulary  # one that is not there is an error before anything is read
    warn_of(opened.other_tokenizer)
    indices = _indices(opened.source, (start, index, key), limit)
    _say_fields(opened)
    if not indices:
        nothing = "no samples" if not indices.start else f"{len(opened):,} samples, none from {indices.start:,} on"
        say(f"{path}: {nothing}")
    if pictures not in (None, "none"):
        show_tables(opened, indices, way, show_all=show_all)
        return
    failed: list[Exception] = []
    width = shutil.get_terminal_size().columns - 2
    for at in indices:
        found = with_command_options(sample_at(opened, at, show_all=show_all, failed=failed.append))
        say(f"{at}: {line(found)}")
        if way is not None:
            show_pictures(found, stored_pictures(opened, at, way, width, ROWS_OF_A_LINE))
    if failed:
        raise failed[0]


def _say_fields(opened: Any) -> None:
    """Name the fields that Python returns and the stored parts that they come from, if dataset.yaml maps them."""
    from penstock.formats.samples.webdataset.details import read_sample_type
    from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, meta_path

    if opened.format != "webdataset" or opened.place is None:
        return
    root = opened.place.path.rstrip("/") or opened.place.path
    named = read_sample_type(opened.place.store, meta_path(root, DATASET_YAML))
    if " of " in named and not named.startswith("can't"):
        click.echo(
            printable(f"stored parts; in Python and in training, {named.replace(' of ', ' with ', 1)}"), err=True
        )


def _as_json(
    path: str, chosen: tuple[int | None, int | None, str | None], count: int | None, tokenizer: str | None,
    options: dict[str, Any], *, show_all: bool,
) -> None:  # fmt: skip
    """The values of the samples, for programs."""
    from penstock.formats import open_source
    from penstock.look.head import decoder

    source = open_source(path, **options)
    left_out = [] if options["trust"] else [one.name for one in source.schema.fields if one.kind == "pickle"]
    if left_out:
        options["columns"] = [one.name for one in source.schema.fields if one.name not in left_out]
        source = open_source(path, **options)
    decodes = source.recipe().get("format") == "mds"  # pickles of litdata aren't decoded at all
    pickled = dict.fromkeys(left_out, "<a pickle: --trust decodes it>" if decodes else "<a pickle>")
    decode = decoder(tokenizer)

    def shown(at: int) -> dict[str, Any]:
        return {"index": at} | plain_at(source, at, decode, show_all=show_all, more=pickled)

    samples = list(map(shown, _indices(source, chosen, count)))
    fields = _field_map(path, options)
    emit({"path": path, "samples": samples} | ({"fields": fields} if fields else {}), as_json=True, text="")


def _field_map(path: str, options: dict[str, Any]) -> dict[str, str]:
    """Field → the stored parts that it comes from, if dataset.yaml maps them."""
    from penstock.formats import find_format
    from penstock.formats.samples.webdataset.details import read_field_map
    from penstock.store.place import dataset_at
    from penstock.types import OpenOptions

    place = dataset_at(path, follow_links=bool(options.get("follow_links")))
    if find_format(place, options.get("format"), OpenOptions(layout=options.get("layout"))).name != "webdataset":
        return {}
    return read_field_map(place.store, place.path.rstrip("/") or place.path)


def _indices(source: Any, chosen: tuple[int | None, int | None, str | None], count: int | None) -> range:
    from penstock.look.head import first_of

    start, index, key = chosen
    first = first_of(source, start, index, key)
    usual = 5 if index is None and key is None else 1
    return range(first, min(first + (usual if count is None else count), len(source)))


def _require_columns(path: str, options: dict[str, Any]) -> None:
    """That one of the first samples has each field that is asked for; raises `ConfigError`."""
    from penstock._naming import nearest
    from penstock.errors import ConfigError, Excluded, Unsupported
    from penstock.formats import open_source

    every: dict[str, Any] = {**options, "columns": None}
    source = open_source(path, **every)
    try:
        known = {one.name for one in source.schema.fields}
    except Unsupported:  # files of tables may differ in other columns
        return
    for index in range(min(len(source), _LOOKED_AT) if source.schema.open else 0):
        if known.issuperset(options["columns"]):
            break
        with contextlib.suppress(Excluded):
            known.update(source[index])
    for name in options["columns"]:
        if name not in known and len(source):
            close, names = nearest(name, known), ", ".join(sorted(known))
            hint = f"Did you mean {close!r}?" if close else None
            raise ConfigError(
                "no sample has this field", path=path, found=repr(name), expected=f"one of {names}", hint=hint
            )

"""`penstock head PATH`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from penstock.cli._opening import excludes_option, opening_options
from penstock.cli._output import emit, follow_links_option, json_option, say
from penstock.cli._samples import decoder, first_of, require_one, sample_options, visible

_JSON_TOKENS = 4096


@click.command()
@click.argument("path")
@click.option("-n", "count", type=click.IntRange(min=0), help="Samples to show: 5, but 1 with --index or --key.")
@opening_options("the dataset")
@click.option("--columns", help="Only these fields, comma between them.")
@click.option("--trust", is_flag=True, help="Decode pickled columns too, which runs code that the data hold.")
@excludes_option
@sample_options
@follow_links_option
@json_option
def command(
    path: str,
    count: int | None,
    columns: str | None,
    start: int | None,
    index: int | None,
    key: str | None,
    tokenizer: str | None,
    show_all: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the first samples, or those from one on, each in a line; --json has their values."""
    from penstock.view.draw.terminal import line
    from penstock.view.facts.opening import open_target
    from penstock.view.facts.samples import sample_at

    require_one()
    options["columns"] = None if columns is None else columns.split(",")
    if as_json:
        _as_json(path, (start, index, key), count, tokenizer, options, show_all=show_all)
        return
    opened = open_target(path, tokenizer=tokenizer, **options)
    _ = opened.vocabulary  # one that is not there is an error before anything is read
    indices = _indices(opened.source, path, (start, index, key), count)
    failed: list[Exception] = []
    lines = [f"{at}: {line(sample_at(opened, at, show_all=show_all, failed=failed.append))}" for at in indices]
    nothing = "no samples" if not indices.start else f"{len(opened):,} samples, none from {indices.start:,} on"
    say("\n".join(lines) or f"{path}: {nothing}")
    if failed:
        raise failed[0]


def _as_json(
    path: str, chosen: tuple[int | None, int | None, str | None], count: int | None, tokenizer: str | None,
    options: dict[str, Any], *, show_all: bool,
) -> None:  # fmt: skip
    """The values of the samples, for programs."""
    from penstock.errors import Excluded
    from penstock.formats import open_source

    source = open_source(path, **options)
    left_out = [] if options["trust"] else [one.name for one in source.schema.fields if one.kind == "pickle"]
    if left_out:
        options["columns"] = [one.name for one in source.schema.fields if one.name not in left_out]
        source = open_source(path, **options)
    pickled = dict.fromkeys(left_out, "<a pickle: --trust decodes it>")
    decode = decoder(tokenizer)

    def shown(at: int) -> dict[str, Any]:
        try:
            return _plain(visible(source[at], decode, show_all=show_all)) | pickled
        except Excluded as error:
            return {"excluded": error.what}

    samples = [{"index": at} | shown(at) for at in _indices(source, path, chosen, count)]
    emit({"path": path, "samples": samples}, as_json=True, text="")


def _indices(source: Any, path: str, chosen: tuple[int | None, int | None, str | None], count: int | None) -> range:
    start, index, key = chosen
    first = first_of(source, start, index, key)
    usual = 5 if index is None and key is None else 1
    return range(first, min(first + (usual if count is None else count), len(source)))


def _plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in sample.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        shown = value[:_JSON_TOKENS].tolist() if getattr(value, "ndim", 0) else value.tolist()
        return [*shown, f"… {len(value)} in all"] if getattr(value, "ndim", 0) and len(value) > _JSON_TOKENS else shown
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if hasattr(value, "mode") and hasattr(value, "tobytes"):
        return f"<{value.mode} image, {value.width} x {value.height}>"
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: one for name, one in dataclasses.asdict(value).items() if one is not None}
    return value

"""`penstock head PATH`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from penstock.cli._output import emit, follow_links_option, json_option

_LINE_CHARACTERS = 200
_JSON_TOKENS = 4096


@click.command()
@click.argument("path")
@click.option("-n", "count", type=click.IntRange(min=0), default=5, show_default=True, help="Samples to show.")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous; the width of raw tokens.")
@click.option("--split", help="Split of a dataset that has several.")
@click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say.")
@click.option("--columns", help="Only these fields, comma between them.")
@click.option("--trust", is_flag=True, help="Decode pickled columns too, which runs code that the data hold.")
@click.option("--tokenizer", help="tokenizer.json or its folder: show documents as text.")
@follow_links_option
@json_option
def command(
    path: str,
    count: int,
    format_name: str | None,
    columns: str | None,
    tokenizer: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the first samples."""
    from penstock.formats import open_source

    options["columns"] = None if columns is None else columns.split(",")
    source = open_source(path, format=format_name, **options)
    left_out = [] if options["trust"] else [one.name for one in source.schema.fields if one.kind == "pickle"]
    if left_out:
        options["columns"] = [one.name for one in source.schema.fields if one.name not in left_out]
        source = open_source(path, format=format_name, **options)
    pickled = dict.fromkeys(left_out, "<a pickle: --trust decodes it>")
    decode = _decoder(tokenizer)
    samples = [{"index": i} | _at(source, i, decode, pickled) for i in range(min(count, len(source)))]
    lines = "\n".join(f"{one['index']}: {_shorten(one)}" for one in samples)
    emit({"path": path, "samples": samples}, as_json=as_json, text=lines or f"{path}: no samples")


def _at(source: Any, index: int, decode: Any, pickled: dict[str, str]) -> dict[str, Any]:
    from penstock.errors import Excluded

    try:
        return _plain(source[index], decode) | pickled
    except Excluded as error:
        return {"excluded": error.what}


def _decoder(tokenizer: str | None) -> Any:
    if tokenizer is None:
        return None
    from penstock.prepare.tokens.decode import load_decoder

    return load_decoder(tokenizer)


def _plain(sample: Any, decode: Any) -> dict[str, Any]:
    found = {name: _plain_value(value) for name, value in sample.items()}
    if decode is not None and "tokens" in sample:
        found["text"] = decode(sample["tokens"])
    return found


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


def _shorten(sample: dict[str, Any]) -> str:
    import json

    shown = {
        name: value for name, value in sample.items() if name != "index" and not ("text" in sample and name == "tokens")
    }
    text = json.dumps(shown, ensure_ascii=False, default=str)
    return text if len(text) <= _LINE_CHARACTERS else text[: _LINE_CHARACTERS - 1] + "…"

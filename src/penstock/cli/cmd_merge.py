"""`penstock merge A B -o OUT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, progress
from penstock.cli._whole import describe, known, token_bytes_option, whole_options


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", required=True, help="Where the merged dataset goes.")
@token_bytes_option
@click.option("--mix-tokenizers", is_flag=True, help="Take sources of different tokenizers or EOS ids.")
@whole_options
def command(sources: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Join datasets of documents, or JSONL files, in the order given."""
    import msgspec

    from penstock.reshape.merge import merge

    with progress("merge", total=None, unit="samples") as advance:
        report = merge(sources, output, progress=advance, **known(options))
    text = f"{describe(report.output)}, from {len(report.inputs)} sources"
    emit(msgspec.to_builtins(report), as_json=as_json, text=text)

"""`penstock chunk SRC -o OUT --chunk-id K --num-chunks N`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._opening import dataset_argument
from penstock.cli._output import progress
from penstock.cli._whole import describe, known, token_bytes_option, whole_options


@click.command()
@dataset_argument("source")
@click.option("-o", "--output", required=True, help="Where the chunk goes.")
@click.option("--chunk-id", type=int, required=True, help="Which chunk, from 0.")
@click.option("--num-chunks", type=int, required=True, help="How many chunks there are.")
@token_bytes_option
@dry_run_option
@whole_options
def command(source: str, output: str, as_json: bool, **options: Any) -> None:
    """Write one of N consecutive pieces of a dataset; the first ones are the longer ones."""
    import msgspec

    from penstock.reshape.chunk import chunk

    with progress("chunk", total=None, unit="samples") as advance:
        written = chunk(source, output, progress=advance, **known(options))
    data, lines = msgspec.to_builtins(written), [describe(written)]
    emit_written(data, lines, (source,), (written.path,), options, as_json=as_json)

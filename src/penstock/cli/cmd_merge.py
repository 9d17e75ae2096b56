"""`penstock merge A B -o OUT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option
from penstock.cli._executors import optional_executor_options
from penstock.cli._output import emit, progress
from penstock.cli._whole import (
    describe,
    emit_shared,
    kept,
    known,
    shares_options,
    tar_options,
    token_bytes_option,
    whole_options,
)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", required=True, help="Where the merged dataset goes.")
@token_bytes_option
@click.option("--mix-tokenizers", is_flag=True, help="Take sources of different tokenizers or EOS ids.")
@click.option(
    "--no-copy",
    is_flag=True,
    help="Shards of samples stay where they are, below the output: only one index over all of them is written.",
)
@tar_options
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(sources: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Join datasets of documents, JSONL files, or folders of shards, in the order given.

    Many machines share the work by --part; --finish commits it.
    """
    import msgspec

    from penstock.reshape.merge import merge

    with kept(output, options), progress("merge", total=None, unit="samples") as advance:
        report = merge(sources, output, progress=advance, **known(options))
    if report.shards is not None:
        data = {"path": output, "shards": report.shards}
        emit(data, as_json=as_json, text=f"{output}: an index of {report.shards:,} shards")
        return
    text, data = f"{describe(report.output)}, from {len(report.inputs)} sources", msgspec.to_builtins(report)
    emit_shared(data, [report.output], [text], sources, options, as_json=as_json)

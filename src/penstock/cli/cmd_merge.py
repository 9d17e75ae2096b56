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
@click.option("-o", "--output", metavar="PATH", required=True, help="Path of the merged dataset.")
@token_bytes_option
@click.option("--mix-tokenizers", is_flag=True, help="Allow sources with different tokenizers or EOS IDs.")
@click.option(
    "--no-copy",
    is_flag=True,
    help="Don't copy shards of samples: only write an index of all shards, which have to be in OUTPUT.",
)
@tar_options
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(sources: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Join datasets of documents, JSONL files or directories of shards, in the given order.

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    import msgspec

    from penstock.reshape.merge import merge

    with kept(output, options), progress("merge", total=None, unit="samples") as advance:
        report = merge(sources, output, progress=advance, **known(options))
    if report.shards is not None:
        data = {"path": output, "shards": report.shards}
        emit(data, as_json=as_json, text=f"{output}: index of {report.shards:,} shards")
        return
    text, data = f"{describe(report.output)}, from {len(report.inputs)} sources", msgspec.to_builtins(report)
    emit_shared(data, [report.output], [text], sources, options, as_json=as_json)

"""`penstock merge A B -o OUT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._executors import optional_executor_options
from penstock.cli._output import emit, progress
from penstock.cli._sharing import end_unfinished
from penstock.cli._whole import (
    describe,
    kept,
    known,
    shares_options,
    tar_options,
    token_bytes_option,
    told,
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
@whole_options
def command(sources: tuple[str, ...], output: str, no_copy: bool, as_json: bool, **options: Any) -> None:
    """Join datasets of documents, JSONL files, or folders of shards, in the order given."""
    import msgspec

    from penstock.errors import ConfigError

    if no_copy:
        alone = (None, False, "inline", 1)
        shared = ("part", "finish", "no_work", "restart")
        given = [name for name in ("executor", "workers", *shared) if options[name] not in alone]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            what = "only an index is written, and nothing is copied"
            raise ConfigError(what, found=f"--no-copy {flags}", hint=f"Leave {flags} out")

        from penstock.formats.shards.merge import merge_index

        shards = merge_index(output, sources, overwrite=options["overwrite"], follow_links=options["follow_links"])
        emit({"path": output, "shards": shards}, as_json=as_json, text=f"{output}: an index of {shards:,} shards")
        return

    from penstock.reshape.merge import merge

    with kept(output, options), progress("merge", total=None, unit="samples") as advance:
        report = merge(sources, output, progress=advance, **known(options))
    text = told([report.output], f"{describe(report.output)}, from {len(report.inputs)} sources")
    emit(msgspec.to_builtins(report), as_json=as_json, text=text)
    end_unfinished(report.output.missing)

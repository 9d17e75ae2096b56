"""`penstock shuffle SRC -o OUT --seed S`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._executors import optional_executor_options
from penstock.cli._output import emit, progress
from penstock.cli._whole import describe, known, tar_options, token_bytes_option, whole_options


@click.command()
@click.argument("source")
@click.option("-o", "--output", required=True, help="Where the shuffled dataset goes.")
@click.option("--seed", type=int, required=True, help="Decides the order: that of penstock.Shuffle in its first epoch.")
@token_bytes_option
@click.option(
    "--memory-mb", type=click.IntRange(min=1), help="For documents held at once; more is faster beyond memory's size."
)
@tar_options
@optional_executor_options
@whole_options
def command(source: str, output: str, memory_mb: int | None, as_json: bool, **options: Any) -> None:
    """Write documents, lines or samples in a random order, in bounded memory; data may be larger than memory."""
    import msgspec

    from penstock.reshape.shuffle import shuffle

    given: dict[str, Any] = known(options) | ({} if memory_mb is None else {"memory_bytes": memory_mb << 20})
    with progress("shuffle", total=None, unit="samples") as advance:
        written = shuffle(source, output, progress=advance, **given)
    emit(msgspec.to_builtins(written), as_json=as_json, text=describe(written))

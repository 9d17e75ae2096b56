"""`penstock shuffle SRC -o OUT --seed S`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli._dry import dry_run_option
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import dataset_argument
from penstock.cli._output import human_bytes, note, progress
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

if TYPE_CHECKING:
    from penstock.reshape.reorder import ShuffleCost


@click.command()
@dataset_argument("source")
@click.option("-o", "--output", metavar="PATH", required=True, help="Path of the shuffled dataset.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the order: the first epoch of penstock.Shuffle."
)
@token_bytes_option
@click.option(
    "--memory-mb",
    type=click.IntRange(min=1),
    show_default="48 to 112",
    help="Memory for documents in MiB; more is faster if the data doesn't fit in memory.",
)
@tar_options
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(source: str, output: str, memory_mb: int | None, as_json: bool, **options: Any) -> None:
    """Write documents, lines or samples in random order.

    Memory is bounded, so the data may be larger than memory. The amount to read is printed first (with --json:
    `cost`).

    To distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.
    """
    import msgspec

    from penstock.reshape.shuffle import shuffle

    costs: list[ShuffleCost] = []

    def announce(cost: ShuffleCost) -> None:
        costs.append(cost)
        if not as_json:
            note(_said(cost))

    given: dict[str, Any] = known(options) | ({} if memory_mb is None else {"memory_bytes": memory_mb << 20})
    with kept(output, options), progress("shuffle", total=None, unit="samples") as advance:
        written = shuffle(source, output, progress=advance, announce=announce, **given)
    data = msgspec.to_builtins(written) | {"cost": msgspec.to_builtins(costs[0]) if costs else None}
    emit_shared(data, [written], [f"{describe(written)} (seed {options['seed']})"], (source,), options, as_json=as_json)


def _said(cost: ShuffleCost) -> str:
    """The cost in a line."""
    where = "requests" if cost.is_remote else "random reads"
    text = f"reads {human_bytes(cost.read_bytes)} in at most {cost.reads:,} {where}"
    text += f", and uses {human_bytes(cost.scratch_bytes)} of scratch space" if cost.scratch_bytes else ""
    return text + (f"; cheaper: {cost.cheaper}" if cost.cheaper else "")

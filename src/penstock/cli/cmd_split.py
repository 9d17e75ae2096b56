"""`penstock split SRC -o DIR --ratio 8,1,1`, `penstock split SRC -o OUT --parts N --only I`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option
from penstock.cli._energon import refuse_given
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import dataset_argument
from penstock.cli._output import progress
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

_OF_RATIO = (
    *("names", "seed", "by", "maxcount", "maxsize", "pattern", "prefix_keys", "executor", "workers"),
    *("part", "finish", "no_work", "restart"),
)


@click.command()
@dataset_argument("source")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    required=True,
    help="With --ratio: directory of the parts, named <stem>_<name><suffix>. With --parts: path of the part.",
)
@click.option("--ratio", metavar="A,B,…", help="Relative size of each part, such as 8,1,1.")
@click.option("--parts", type=int, metavar="N", help="Number of contiguous parts. Write one of them with --only.")
@click.option("--only", type=int, metavar="I", help="The contiguous part to write, from 0.")
@click.option(
    "--names",
    metavar="NAME,…",
    show_default="train,validation,test for two or three parts, else numbers",
    help="Names of the parts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the assignment.")
@click.option(
    "--by",
    type=click.Choice(["position", "content"]),
    default="position",
    show_default=True,
    help="Assign by position (exact sizes) or by content (equal documents share a part, sizes are approximate).",
)
@token_bytes_option
@tar_options
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
@click.pass_context
def command(
    context: click.Context, source: str, output: str, ratio: str | None, parts: int | None, only: int | None,
    names: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Split a dataset by ratio, or extract one of N contiguous parts.

    With --ratio, each document, line or sample is randomly assigned to one part, and all parts are written. To
    distribute the work, run it with --part on each machine, with OUTPUT on shared storage, then once with --finish.

    With --parts N --only I, the dataset is cut into N contiguous parts of equal length (the first parts are one longer
    if the length isn't divisible by N), and part I, counted from 0, is written.

    Both keep the order within each part.
    """
    import msgspec

    from penstock.errors import ConfigError
    from penstock.reshape.split import split
    from penstock.store.place import place_of

    if (ratio is None) == (parts is None):
        raise click.UsageError("Give either --ratio 8,1,1 or --parts N --only I.")
    if (parts is None) != (only is None):
        raise click.UsageError("--parts N and --only I must be given together.")
    if parts is None:
        refuse_given(context, ("token_bytes",), "--ratio keeps the width of token IDs")
    else:
        refuse_given(context, _OF_RATIO, "Contiguous parts are cut by one process, without a seed")
    try:
        shares = None if ratio is None else [float(share) for share in ratio.split(",")]
    except ValueError:
        raise ConfigError("not shares of a split", found=ratio, expected="numbers such as 8,1,1") from None
    named = None if names is None else names.split(",")
    work = place_of(output).child(place_of(source).name).path
    with kept(work, options), progress("split", total=None, unit="samples") as advance:
        written = split(
            source, output, ratio=shares, parts=parts, only=only, names=named, progress=advance, **known(options)
        )
    mode = f"part {only} of {parts} contiguous parts, counted from 0"
    if ratio is not None:
        mode = f"ratio {ratio} by {options['by']}, seed {options['seed']}"
    data = {"mode": "ratio" if parts is None else "contiguous", "parts": [msgspec.to_builtins(one) for one in written]}
    lines = [f"{describe(one)} ({mode})" for one in written]
    emit_shared(data, written, lines, (source,), options, as_json=as_json, work=work)

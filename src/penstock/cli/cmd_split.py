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
    required=True,
    help="With --ratio: folder of the parts, <stem>_<name><suffix>. With --parts: path of the extracted part.",
)
@click.option("--ratio", help="Share of each part in any unit, such as 8,1,1.")
@click.option("--parts", type=int, metavar="N", help="Number of contiguous parts; --only says which to write.")
@click.option("--only", type=int, metavar="I", help="With --parts: write part I only, counted from 0.")
@click.option("--names", help="Names of the parts; by default train,validation,test for two or three, else numbers.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which document goes to which part.")
@click.option(
    "--by",
    type=click.Choice(["position", "content"]),
    default="position",
    show_default=True,
    help="position: exact shares; content: equal documents share a part, shares hold on average.",
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
    """Assign documents, lines or samples to parts: each goes to exactly one, and keeps its order there.

    With --ratio, they are assigned at random, and all parts are written. Many machines share the work by --part, with
    the folder where all of them see it; --finish commits it.

    With --parts N --only I, the dataset is cut into N contiguous parts of equal length, and part I (from 0) is written
    as one dataset. The first parts are one longer if the length isn't divisible by N.
    """
    import msgspec

    from penstock.errors import ConfigError
    from penstock.reshape.split import split
    from penstock.store.place import place_of

    if (ratio is None) == (parts is None):
        raise click.UsageError("Give either --ratio 8,1,1 or --parts N --only I.")
    if (parts is None) != (only is None):
        raise click.UsageError("--parts N and --only I belong together.")
    if parts is None:
        refuse_given(context, ("token_bytes",), "--ratio keeps the width of token ids")
    else:
        refuse_given(context, _OF_RATIO, "--parts cuts at fixed places, in one process")
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

"""`penstock split SRC -o DIR --ratio 8,1,1`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import dataset_argument
from penstock.cli._output import progress
from penstock.cli._whole import describe, emit_shared, kept, known, shares_options, tar_options, whole_options


@click.command()
@dataset_argument("source")
@click.option("-o", "--output", required=True, help="Folder of the parts: <stem>_<name><suffix>.")
@click.option("--ratio", required=True, help="Share of each part in any unit, such as 8,1,1.")
@click.option("--names", help="Names of the parts; by default train,validation,test for two or three, else numbers.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which document goes to which part.")
@click.option(
    "--by",
    type=click.Choice(["position", "content"]),
    default="position",
    show_default=True,
    help="position: exact shares; content: equal documents share a part, shares hold on average.",
)
@tar_options
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(source: str, output: str, ratio: str, names: str | None, as_json: bool, **options: Any) -> None:
    """Assign documents, lines or samples to parts: each goes to exactly one, and keeps its order there.

    Many machines share the work by --part, with the folder where all of them see it; --finish commits it.
    """
    import msgspec

    from penstock.errors import ConfigError
    from penstock.reshape.split import split
    from penstock.store.place import place_of

    try:
        shares = [float(share) for share in ratio.split(",")]
    except ValueError:
        raise ConfigError("not shares of a split", found=ratio, expected="numbers such as 8,1,1") from None
    named = None if names is None else names.split(",")
    work = place_of(output).child(place_of(source).name).path
    with kept(work, options), progress("split", total=None, unit="samples") as advance:
        parts = split(source, output, ratio=shares, names=named, progress=advance, **known(options))
    data = {"parts": [msgspec.to_builtins(part) for part in parts]}
    emit_shared(data, parts, list(map(describe, parts)), (source,), options, as_json=as_json, work=work)

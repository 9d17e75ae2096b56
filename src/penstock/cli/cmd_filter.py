"""`penstock filter SRC -o OUT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import dataset_argument
from penstock.cli._output import note, progress
from penstock.cli._whole import describe, emit_shared, kept, known, shares_options, token_bytes_option, whole_options


@click.command()
@dataset_argument("source")
@click.option("-o", "--output", metavar="PATH", required=True, help="Path of the filtered dataset.")
@click.option("--min-tokens", type=int, help="Minimum document length in tokens, including EOS.")
@click.option("--max-tokens", type=int, help="Maximum document length in tokens, including EOS.")
@click.option("--match", metavar="REGEX", help="Regular expression to search for in --field.")
@click.option(
    "--field",
    metavar="NAME",
    default="text",
    show_default=True,
    help="Field that --match searches, such as meta.title.",
)
@click.option("--where", metavar="EXPR", help="Expression on fields, such as: lang == 'en' and len(text) > 200")
@click.option("--indices", metavar="FILE", help="File of indices (from 0) to keep: one per line, or .npy.")
@click.option("--invert", is_flag=True, help="Keep what doesn't match instead.")
@token_bytes_option
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(source: str, output: str, as_json: bool, **options: Any) -> None:
    """Keep the documents, lines or samples that meet all conditions.

    Their order doesn't change. To distribute the work, run it with --part on each machine, with OUTPUT on shared
    storage, then once with --finish.
    """
    import msgspec

    from penstock.reshape.filter import filter

    with kept(output, options), progress("filter", total=None, unit="samples") as advance:
        report = filter(source, output, progress=advance, **known(options))
    if options["part"] is None and not report.output.missing:
        if not report.output.samples:
            note("warning: no samples match, so the output is empty")
        elif not report.dropped and not report.output.was_complete:
            note("warning: all samples match, so nothing was removed")
    text, data = f"{describe(report.output)}; {report.dropped:,} removed", msgspec.to_builtins(report)
    emit_shared(data, [report.output], [text], (source,), options, as_json=as_json)

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
@click.option("-o", "--output", required=True, help="Where the filtered dataset goes.")
@click.option("--min-tokens", type=int, help="Least length of a document, its EOS token counted.")
@click.option("--max-tokens", type=int, help="Greatest length of a document.")
@click.option("--match", help="Regular expression that is searched in a field of each line.")
@click.option("--field", default="text", show_default=True, help="The field that --match reads; dots lead inside.")
@click.option("--where", help="Expression on the fields of a line, such as: lang == 'en' and len(text) > 200")
@click.option("--indices", help="File with the indices to keep, from 0: one a line, or .npy.")
@click.option("--invert", is_flag=True, help="Keep those that don't fit instead.")
@token_bytes_option
@optional_executor_options
@shares_options
@dry_run_option
@whole_options
def command(source: str, output: str, as_json: bool, **options: Any) -> None:
    """Keep the documents, lines or samples that fit all conditions, in their order.

    Many machines share the work by --part, with OUT where all of them see it; --finish commits it.
    """
    import msgspec

    from penstock.reshape.filter import filter

    with kept(output, options), progress("filter", total=None, unit="samples") as advance:
        report = filter(source, output, progress=advance, **known(options))
    if options["part"] is None and not report.output.missing:
        if not report.output.samples:
            note("warning: nothing fits, so the output holds no sample")
        elif not report.dropped and not report.output.was_complete:
            note("warning: everything fits, and nothing is left out")
    text, data = f"{describe(report.output)}; {report.dropped:,} left out", msgspec.to_builtins(report)
    emit_shared(data, [report.output], [text], (source,), options, as_json=as_json)

"""`penstock purge TARGET -o NEW`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import planes_option
from penstock.cli._output import counted, follow_links_option, json_option, progress


@click.command()
@click.argument("target")
@click.option("-o", "--output", required=True, help="The new dataset.")
@click.option("--list", "list_path", help="The exclude list, instead of the one beside the data.")
@click.option("--to", help="Format of the output; by default as its suffix or the target has it.")
@click.option("--overwrite", is_flag=True, help="Replace the output.")
@click.option("--format", help="Format of the target, instead of finding it out.")
@click.option("--split", help="Split of the target, for formats that have splits.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say.")
@optional_executor_options
@dry_run_option
@planes_option
@follow_links_option
@json_option
def command(target: str, output: str, list_path: str | None, as_json: bool, **options: Any) -> None:
    """Rewrite a dataset without excluded samples, and list those removed in OUTPUT.certificate.json."""
    import msgspec

    from penstock.look.purge import purge

    with progress("purge", total=None, unit="samples") as advance:
        report = purge(target, output, list=list_path, progress=advance, **options)
    text = f"{report.path}: {counted(report.samples, 'sample')}, {report.removed:,} removed; {report.certificate}"
    emit_written(msgspec.to_builtins(report), [text], (target,), (output,), options, as_json=as_json)

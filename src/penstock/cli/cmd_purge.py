"""`penstock purge TARGET -o NEW`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import opening_options
from penstock.cli._output import counted, follow_links_option, json_option, progress
from penstock.cli._whole import to_option


@click.command()
@click.argument("target")
@click.option("-o", "--output", metavar="PATH", required=True, help="Path of the new dataset.")
@click.option("--excludes", "list_path", metavar="FILE", show_default="next to the dataset", help="The exclude list.")
@to_option
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@opening_options("the target")
@optional_executor_options
@dry_run_option
@follow_links_option
@json_option
def command(target: str, output: str, list_path: str | None, as_json: bool, **options: Any) -> None:
    """Rewrite a dataset without excluded samples and issue a removal certificate.

    The certificate, OUTPUT.certificate.json, lists the removed samples. TARGET is not changed.
    """
    import msgspec

    from penstock.look.purge import purge

    with progress("purge", total=None, unit="samples") as advance:
        report = purge(target, output, list=list_path, progress=advance, **options)
    text = f"{report.path}: {counted(report.samples, 'sample')}, {report.removed:,} removed; {report.certificate}"
    emit_written(msgspec.to_builtins(report), [text], (target,), (output,), options, as_json=as_json)

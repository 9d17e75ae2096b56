"""`penstock convert SRC DST`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option, progress


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--to", help="Format of the target; found from its suffix where it is not given.")
@click.option("--format", "format_name", help="Format of the source, instead of finding it out.")
@click.option("--layout", help="Historical layout of the source, where it is ambiguous.")
@click.option("--overwrite", is_flag=True, help="Replace the target.")
@json_option
def command(source: str, target: str, to: str | None, format_name: str | None, as_json: bool, **options: Any) -> None:
    """Convert a dataset to another format or layout, and verify the result by its document digest."""
    import msgspec

    from penstock.convert import convert

    with progress("convert", total=None, unit="samples") as advance:
        report = convert(source, target, to=to, format=format_name, progress=advance, **options)
    emit(
        msgspec.to_builtins(report),
        as_json=as_json,
        text=lambda: (
            f"{source} → {target} ({report.to})\n"
            f"  {report.samples:,} samples, {human_bytes(report.size_bytes)} in {report.copy_seconds:.2f} s, "
            f"verified in {report.verify_seconds:.2f} s\n  digest {report.digest}"
        ),
    )

"""`penstock lint PATH`."""

from __future__ import annotations

from typing import Any

import click

from penstock._printable import shortened_part
from penstock.cli._opening import dataset_argument
from penstock.cli._output import counted, emit, follow_links_option, json_option, note, progress


@click.command()
@dataset_argument("path")
@click.option("--split-parts", help="Only these splits, comma between them; by default all that have samples.")
@click.option("--dataset-config", default="dataset.yaml", show_default=True, help="Says what samples are.")
@click.option("--split-config", help="Says which shards a split has; by default split.yaml.")
@click.option("--format", "format_name", help="Format name, instead of finding it out.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@click.option("--eos-id", type=int, help="Id that ends each document.")
@click.option("--trust", is_flag=True, help="Run code that comes with the data, such as a sample_loader.py.")
@click.option("--parallel", type=int, help="Taken from Energon; one process reads.")
@follow_links_option
@json_option
def command(
    path: str, split_parts: str | None, format_name: str | None, parallel: int | None, as_json: bool, **options: Any
) -> int:
    """Read and decode every sample; say where one can't be, and why. Exits with 1 for one that can't.

    Takes every kind of dataset: typed or crude samples in tars, JSONL, folders of media, shards.
    Sound and video are read, but not decoded.
    """
    import msgspec

    from penstock.check.lint import lint
    from penstock.cli.cmd_verify import describe_findings

    if parallel is not None and parallel > 1:
        note(f"--parallel {parallel}: one process reads")
    splits = None if split_parts is None else [name.strip() for name in split_parts.split(",") if name.strip()]
    with progress("lint", total=None, unit="samples") as advance:
        report = lint(
            path,
            splits=splits,
            format=format_name,
            progress=lambda done, total: advance(done, total=total),
            **options,
        )
    errors = sum(one.severity == "error" for one in report.findings)

    def text() -> str:
        read = ", ".join(
            f"{count:,} samples{' of ' + split if split else ''}" for split, count in report.samples.items()
        )
        found = f"{counted(errors, 'error')}, {counted(len(report.findings) - errors, 'warning')}"
        verdict = found if report.findings else "clean"
        last = f"{shortened_part(path)}: {verdict}; read {read or 'nothing'}"
        return "\n".join([*describe_findings(report.findings), last])

    emit(msgspec.to_builtins(report) | {"errors": errors}, as_json=as_json, text=text)
    return 1 if errors else 0

"""`penstock index FILE.jsonl`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._executors import modest_executor_options
from penstock.cli._output import emit, human_bytes, json_option, note, progress

_SHOWN = 10


@click.command()
@click.argument("path")
@click.option("--flavor", default="modalities", show_default=True, help="Whose index to make.")
@click.option("--index-path", help="Where it goes, instead of beside the file.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a line that is no JSON: stop, or leave it out and count it.",
)
@click.option("--no-validate", is_flag=True, help="Look for line ends only.")
@click.option("--overwrite", is_flag=True, help="Replace an index that is there.")
@modest_executor_options
@json_option
def command(path: str, no_validate: bool, as_json: bool, **options: Any) -> None:
    """Make the raw index of a JSONL file: where each line begins, and how long it is."""
    import msgspec

    from penstock.prepare.raw import build_index
    from penstock.store.place import place_of

    place = place_of(path)
    size_bytes = place.store.size(place.path) if place.is_local and place.is_file() else None
    with progress("index", total=size_bytes) as advance:
        report = build_index(path, validate=not no_validate, progress=lambda done: advance(done, ""), **options)

    def text() -> str:
        made = f"{report.index_path}: {report.num_lines:,} lines of {human_bytes(report.size_bytes)}"
        return made if not report.num_dropped else f"{made}, {report.num_dropped:,} faulty ones left out"

    if not as_json:
        for one in report.dropped[:_SHOWN]:
            note(f"left out: line {one.line} at byte {one.offset_bytes}: {one.reason}")
        if report.num_dropped > _SHOWN:
            note(f"… and {report.num_dropped - _SHOWN:,} more; --json lists the first 100")
    emit(msgspec.to_builtins(report), as_json=as_json, text=text)

"""`penstock index FILE.jsonl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._executors import modest_executor_options
from penstock.cli._output import counted, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, part_option

if TYPE_CHECKING:
    from penstock.prepare.jsonl_index import IndexReport, IndexSummary

_SHOWN = 10


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="INPUT...")
@click.option("--flavor", default="modalities", show_default=True, help="Index format: modalities or energon.")
@click.option(
    "--index-path", metavar="FILE", show_default="next to the file", help="Path of the index, for a single input file."
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do with invalid lines: fail (raise), or skip and count.",
)
@click.option("--no-validate", is_flag=True, help="Don't check that lines are valid JSON.")
@click.option("--overwrite", is_flag=True, help="Replace an existing index.")
@modest_executor_options
@click.option("--no-work", is_flag=True, help="With --finish: list files without an index and exit with 14.")
@click.option("--finish", is_flag=True, help="Check existing indexes and create missing ones.")
@part_option("Index part I (from 0) of N of the files")
@dry_run_option
@follow_links_option
@json_option
def command(paths: tuple[str, ...], no_validate: bool, as_json: bool, **options: Any) -> None:
    """Build the raw index of JSONL files: the offset and length of each line.

    An INPUT is a file, a glob, or a directory, which is searched for .jsonl and .ndjson files. With several files,
    valid existing indexes are kept, and an error in one file doesn't stop the others; the first error is reported at
    the end.
    """
    import msgspec

    from penstock.prepare.jsonl_index import IndexReport, index
    from penstock.store.place import place_of

    place = place_of(paths[0])
    total_bytes = place.store.size(place.path) if len(paths) == 1 and place.is_local and place.is_file() else None
    with progress("index", total=total_bytes) as advance:
        made = index(paths, validate=not no_validate, progress=lambda done: advance(done, ""), **options)
    reports = [made] if isinstance(made, IndexReport) else made.indexes
    if not as_json:
        for report in reports:
            _list_dropped(report)
    totals = {"num_lines": made.num_lines, "num_dropped": made.num_dropped, "size_bytes": made.size_bytes}
    data, indexes = totals | msgspec.to_builtins(made), [one.index_path for one in reports]
    emit_written(data, _text(made).split("\n"), paths, indexes, options, as_json=as_json)
    end_unfinished([] if isinstance(made, IndexReport) else made.missing)


def _list_dropped(report: IndexReport) -> None:
    for one in report.dropped[:_SHOWN]:
        note(f"skipped: line {one.line} at byte {one.offset_bytes}: {one.reason}")
    if report.num_dropped > _SHOWN:
        note(f"… and {report.num_dropped - _SHOWN:,} more; --json lists the first 100")


def _text(made: IndexReport | IndexSummary) -> str:
    from penstock.prepare.jsonl_index import IndexReport

    lines = f"{counted(made.num_lines, 'line')}, {human_bytes(made.size_bytes)}"
    dropped = f"; {counted(made.num_dropped, 'invalid line')} skipped" if made.num_dropped else ""
    if isinstance(made, IndexReport):
        return f"{made.index_path}: {lines}{dropped}"
    reused = f"; {made.num_reused:,} existed already" if made.num_reused else ""
    if made.missing:
        names = [f"no index: {path}" for path in made.missing[:_SHOWN]]
        count = len(made.missing) + len(made.indexes)
        return "\n".join([*names, f"{len(made.missing):,} of {count:,} files have no index: run with --finish"])
    part = "" if made.part is None else f"part {made.part[0]} of {made.part[1]}: "
    indexes = f"{len(made.indexes):,} index{'' if len(made.indexes) == 1 else 'es'}"
    return f"{part}{indexes}: {lines}{dropped}{reused}"

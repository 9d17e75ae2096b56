"""`penstock diff A B`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import excludes_option_of, opening_options
from penstock.cli._output import counted, emit, follow_links_option, json_option, progress


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--as",
    "compare_as",
    type=click.Choice(["sequence", "set"]),
    default="sequence",
    show_default=True,
    help="Compare in order (sequence), or in any order (set). Duplicates count.",
)
@opening_options("both datasets")
@excludes_option_of("--excludes-a", "A")
@excludes_option_of("--excludes-b", "B")
@click.option("--trust", is_flag=True, help="Run code stored with the data.")
@optional_executor_options
@follow_links_option
@json_option
def command(a: str, b: str, as_json: bool, **options: Any) -> int:
    """Compare two datasets sample by sample, in any formats.

    Exits with 1 if they differ.
    """
    import msgspec

    from penstock.look.diff import diff

    with progress("diff", total=None, unit="samples") as advance:
        report = diff(a, b, progress=advance, **options)
    emit(msgspec.to_builtins(report), as_json=as_json, text=lambda: _text(report))
    return 0 if report.equal else 1


def _text(report: Any) -> str:
    if report.equal:
        how = ", by the digests in their side files; no samples were read" if report.by == "side files" else ""
        return f"equal: {counted(report.num_a, 'sample')}{how}"
    lines: list[str] = []
    if report.num_reordered:
        lines.append(f"same samples, different order: {report.num_reordered:,} of {report.num_a:,} positions differ")
    for name, other, missing, num in (
        ("A", "B", report.only_in_a, report.num_a),
        ("B", "A", report.only_in_b, report.num_b),
    ):
        if missing:
            verb = "is" if missing == 1 else "are"
            lines.append(f"{missing:,} of {num:,} samples of {name} {verb} missing from {other}")
    for side, planes in (("A", report.planes_only_in_a), ("B", report.planes_only_in_b)):
        if planes:
            names = ", ".join(planes)
            lines.append(f"planes only in {side}: {names}; --planes none compares only the token IDs")
    for side, other in ((report.schema.a, report.schema.b), (report.schema.b, report.schema.a)):
        only = ", ".join(sorted(side.keys() - other.keys()))
        lines += [f"fields only in {'A' if side is report.schema.a else 'B'}: {only}"] if only else []
    lines += _of_parts(set(report.schema.a), set(report.schema.b))
    for one in report.first_differences:
        for name, index, key, sample in (("A", one.index_a, one.key_a, one.a), ("B", one.index_b, one.key_b, one.b)):
            if index is not None:
                shown = ", ".join(f"{field}: {value}" for field, value in (sample or {}).items())
                lines.append(f"{name} {index:,}{f' ({key})' if key else ''}: {shown}")
    return "\n".join(lines)


def _of_parts(a: set[str], b: set[str]) -> list[str]:
    """What to do where fields differ by the suffix alone that tars give them."""
    for whole, parts in ((a - b, b - a), (b - a, a - b)):
        as_part = next((part for part in sorted(parts) if part.rpartition(".")[0] in whole), None)
        if as_part is not None:
            name = as_part.rpartition(".")[0]
            return [f"  {name} is the part {as_part} in tars: `penstock convert TARS NEW --to mds` restores the name"]
    return []

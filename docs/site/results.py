"""The page of measured results, with plots, from `bench/results.json`."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

WIDTH = 900
LABEL = 430
ROW = 22
Row = dict[str, Any]

HEAD = """# Performance

Each row compares Penstock with another tool, or with the fastest code for a part of the work, in the same run on the
same machine. A bar shows how many times as fast Penstock is, on a logarithmic axis. `make bench` repeats the
measurements.
"""


def results_page(path: Path) -> str:
    """Return the page in Markdown: a plot of all benchmarks, then a table and a plot for each."""
    questions = json.loads(path.read_text())["questions"]
    parts = [HEAD, overview(questions)]
    for question in questions.values():
        parts.append(f"## {question['title']}\n")
        compared = [row for row in question["rows"] if row["other"] is not None and row["factor"]]
        if compared:
            parts.append(bars([(row["what"], row) for row in compared], f"{question['title']}: times as fast"))
        parts.append(table(question["rows"]))
        parts += [f"{note}\n" for note in question["notes"]]
        parts.append(f"`{question['command']}`, {question['date']}: {question['machine']}\n")
    return "\n".join(parts)


def overview(questions: dict[str, Any]) -> str:
    """Return a plot of the first row with a peer of each benchmark."""
    first = [
        (question["title"], row)
        for question in questions.values()
        for row in [next((one for one in question["rows"] if one["other"] is not None and one["factor"]), None)]
        if row is not None
    ]
    first.sort(key=lambda one: -one[1]["factor"])
    return bars(first, "Times as fast as the peer, first comparison of each benchmark")


def bars(rows: list[tuple[str, Row]], title: str) -> str:
    """Return an SVG with one bar per row, from 1 to its factor; slower than the peer is on the left."""
    factors = [row["factor"] for _, row in rows]
    low, high = min(0.5, *factors), max(20.0, *factors) * 2.4
    height = ROW * len(rows) + 30

    def x(factor: float) -> float:
        span = math.log10(high) - math.log10(low)
        return LABEL + (WIDTH - LABEL - 10) * (math.log10(factor) - math.log10(low)) / span

    lines = [f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img"><title>{html.escape(title)}</title>']
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = x(10.0**power)
        lines.append(f'<line class="line" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - 22}"/>')
        lines.append(f'<text class="quiet" x="{at:.1f}" y="{height - 6}" text-anchor="middle">{10.0**power:g}×</text>')
    for number, (label, row) in enumerate(rows):
        lines += _bar(row, label, ROW * number, x)
    return "".join([*lines, "</svg>\n"])


def _bar(row: Row, label: str, top: float, x: Any) -> list[str]:
    start, end = sorted((x(1.0), x(row["factor"])))
    kind = "ours" if row["factor"] >= 1 else "other"
    shown = label if len(label) <= 58 else f"{label[:57]}…"
    full = f"{label}: {times(row['factor'])} ({row['other_name']})"
    return [
        f"<g><title>{html.escape(full)}</title>",
        f'<text x="{LABEL - 12}" y="{top + 15}" text-anchor="end">{html.escape(shown)}</text>',
        f'<rect class="{kind}" x="{start:.1f}" y="{top + 4}" width="{max(end - start, 1):.1f}" height="14" rx="1.5"/>',
        f'<text x="{end + 6:.1f}" y="{top + 15}">{times(row["factor"])}</text>',
        "</g>",
    ]


def table(rows: list[Row]) -> str:
    """Return a table of all rows of a benchmark."""
    lines = ["| | Penstock | compared with | factor |", "|---|--:|--:|--:|"]
    for row in rows:
        other = "" if row["other"] is None else f"{amount(row['other'], row['unit'])} ({row['other_name']})"
        factor = "" if row["factor"] is None or row["other"] is None else times(row["factor"])
        lines.append(f"| {row['what']} | {amount(row['ours'], row['unit'])} | {other} | {factor} |")
    return "\n".join([*lines, ""])


def times(factor: float) -> str:
    """Return a factor with three digits."""
    return f"{factor:,.0f}×" if factor >= 100 else f"{factor:.3g}×"


def amount(value: float, unit: str) -> str:
    """Return a value with three digits and its unit."""
    return (f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}").rstrip()

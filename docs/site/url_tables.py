"""The tables of the page about URLs, from `tests/urls/cells.json`."""

from __future__ import annotations

import json
from pathlib import Path

CAPTIONS = {
    "copy": ("Commands that read one dataset and write another", "Columns: input → output."),
    "read": ("Commands that only read", "Column: input."),
    "inside": ("Commands that write next to their input", "Column: input."),
}
TRIED = "tried"


def tables(path: Path) -> str:
    """Return one table per kind of command; formats with the same results share a row."""
    parts = []
    reasons: list[str] = []
    for kind, section in json.loads(path.read_text()).items():
        title, note = CAPTIONS[kind]
        groups: dict[tuple[str, ...], list[str]] = {}
        for verb, format, verdicts in section["rows"]:
            groups.setdefault((verb, *verdicts), []).append(format)
        columns = section["columns"]
        lines = [f"| command | formats | {' | '.join(columns)} |", "|---|---|" + ":-:|" * len(columns)]
        for (verb, *verdicts), formats in groups.items():
            cells = " | ".join(_cell(verdict, reasons) for verdict in verdicts)
            lines.append(f"| `{verb}` | {', '.join(formats)} | {cells} |")
        parts.append("\n".join([f"## {title}\n\n{note}\n", *lines]))
    if reasons:
        notes = [f"{number}. {reason[:1].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
        parts.append("\n".join(["## What the numbers mean\n", *notes]))
    return "\n\n".join(parts) + "\n"


def _cell(verdict: str, reasons: list[str]) -> str:
    if verdict == TRIED:
        return "✓"
    reason = verdict.removeprefix("refused: ")
    if reason not in reasons:
        reasons.append(reason)
    return f"error {reasons.index(reason) + 1}"

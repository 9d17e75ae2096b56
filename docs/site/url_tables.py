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
NAMES = {
    "its list": "with a list of indices",
    "a list elsewhere": "exclude list at a URL",
    "beside": "index next to the file",
    "a shelf": "directory of datasets",
    "tar indexes": "tars, `--tar-index-only`",
    "recipe and state": "recipe with a state",
    "jsonl of Energon": "jsonl, Energon's index",
}
"""Names of cases that aren't formats, as the page shows them."""
VERBS = {"convert from": "`convert` (input)", "convert to": "`convert` (output)"}


def tables(path: Path) -> str:
    """Return one table per kind of command; formats with the same results share a row."""
    parts = []
    reasons: list[str] = []
    for kind, section in json.loads(path.read_text()).items():
        title, note = CAPTIONS[kind]
        groups: dict[tuple[str, ...], list[str]] = {}
        for verb, format, verdicts in section["rows"]:
            groups.setdefault((verb, *verdicts), []).append(NAMES.get(format, format))
        columns = section["columns"]
        lines = [f"| command | formats | {' | '.join(columns)} |", "|---|---|" + ":-:|" * len(columns)]
        for (verb, *verdicts), formats in groups.items():
            cells = " | ".join(_cell(verdict, reasons) for verdict in verdicts)
            lines.append(f"| {VERBS.get(verb, f'`{verb}`')} | {', '.join(formats)} | {cells} |")
        parts.append("\n".join([f"## {title}\n\n{note}\n", *lines]))
    if reasons:
        notes = [f"{number}. {reason[:1].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
        parts.append("\n".join(["## Errors\n", *notes]))
    return "\n\n".join(parts) + "\n"


def _cell(verdict: str, reasons: list[str]) -> str:
    if verdict == TRIED:
        return "✓"
    reason = verdict.removeprefix("refused: ")
    if reason not in reasons:
        reasons.append(reason)
    return f"error {reasons.index(reason) + 1}"

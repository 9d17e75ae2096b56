"""Read and write `tests/urls/cells.json`: the verdict of each command on each kind of store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.urls.cases import CASES
from tests.urls.cells import Cell, cells_of

FILE = Path(__file__).with_name("cells.json")
KINDS = ("s3", "http", "az")
UNTRIED = "not tried"
_CASE_KINDS = ("copy", "read", "inside")


def dump_cells(verdicts: Mapping[Cell, str]) -> str:
    """Return the text of `cells.json`: one row per case, one verdict per column."""
    sections = []
    for kind in _CASE_KINDS:
        cases = [case for case in CASES if case.kind == kind]
        columns = [(cell.source, cell.target) for cell in cells_of(cases[0], KINDS)]
        names = [" → ".join(_display_name(place) for place in column if place) for column in columns]
        rows = [
            [case.verb, case.format, [_shorten(verdicts.get(Cell(case, *column), UNTRIED)) for column in columns]]
            for case in cases
        ]
        lines = ",\n".join(f"      {json.dumps(row, ensure_ascii=False)}" for row in rows)
        columns_text = json.dumps(names, ensure_ascii=False)
        sections.append(f'  "{kind}": {{\n    "columns": {columns_text},\n    "rows": [\n{lines}\n    ]\n  }}')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def load_cells(text: str) -> dict[Cell, str]:
    """Return the verdict of each cell in the text of `cells.json`."""
    cases = {(case.verb, case.format, case.kind): case for case in CASES}
    verdicts: dict[Cell, str] = {}
    for kind, section in json.loads(text).items():
        columns = [name.replace("disk", "local").split(" → ") for name in section["columns"]]
        for verb, format, row in section["rows"]:
            for column, verdict in zip(columns, row, strict=True):
                verdicts[Cell(cases[verb, format, kind], *column)] = verdict
    return verdicts


def same(verdict: str, recorded: str) -> bool:
    """Whether a verdict agrees with the recorded one."""
    return _shorten(verdict) == recorded


def _display_name(kind: str) -> str:
    return "disk" if kind == "local" else kind


def _shorten(verdict: str) -> str:
    """A reason without its hint, and without what differs between runs."""
    return verdict.partition(". ")[0].replace("|", "/").replace("\n", " ")

"""`docs/urls.md`: what the cells were found to be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.urls.cases import CASES, Case
from tests.urls.cells import Cell, cells_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "urls.md"
KINDS = ("s3", "http", "az")
NOT_SHOWN = "not shown"
_HEAD = """# URLs: every verb, every format

Every verb takes URLs where it takes paths. What follows was tried, each cell by the command itself, against servers
of one machine: S3 by moto, Azure by Azurite, the web by a server of ranges. `tried`: it ended well, left the bytes
that it leaves on a disk, and nothing else. `refused`: it said so in one line, with what to do, before it wrote
anything. Google's store (`gs://`) goes through the same code, and no server of it was here: **not shown**.

A `view` is tried by its first page. `mount` needs FUSE, and is not here; `demo`, `doctor`, `completion` and `cache`
take no URLs, and the commands of others are the verbs of the same names.

`make all-cells` tries them all, and fails where this page says otherwise; `make test` tries each verb once, and each
format once in each direction. `python tests/urls/all_cells.py --write` writes this page. What `pack` keeps beside
its output until it is complete is described in [pack](guide/pack.md).

## What goes over

- A **file** (pbin, Megatron, JSONL, an index) is made in the cache folder (`PENSTOCK_CACHE`), so it needs its own
  size there, then goes up and is put under its name on the condition that none is there.
- A **folder** (WebDataset, files, flat-tokens, MDS, CSV, JSON) goes up file by file, each as soon as it is finished:
  the cache holds those under way, at most four shards or chunks, or one tar and twice the `index.sqlite`. The file
  that makes it a dataset goes last (`index.json`, `.nv-meta/.info.json`, `.zgroup` or `zarr.json`, `.penstock`),
  where none is there.
- `shuffle` of data larger than its memory keeps a scratch file of their size in the cache folder; other verbs read by
  ranges, or through the cache within its budget (`PENSTOCK_CACHE_BYTES`).
- **Killed**: of a folder what is up stays, under a mark (`.index.json.writing.staged` and so on) that readers,
  `prepare` and other writers respect; the same command uploads the rest. A file is written again from its start. The
  work of `prepare` stays in the cache folder of the host, so another host begins anew. Nothing of an unfinished
  output is taken for a dataset.
- `--overwrite` replaces a file in one step. A folder in an object store can't be replaced so: it is refused, write
  beside it.

"""


def page(found: Mapping[Cell, str]) -> str:
    """The page of these verdicts; a cell that was not tried is said to be not shown."""
    text = _HEAD
    for title, kind in (("Reads one, writes another", "copy"), ("Only reads", "read"), ("Writes beside it", "inside")):
        cases = [case for case in CASES if case.kind == kind]
        text += f"## {title}\n\n{_table(cases, found)}\n\n"
    return text.rstrip("\n") + "\n"


def _table(cases: Sequence[Case], found: Mapping[Cell, str]) -> str:
    columns = [(cell.source, cell.target) for cell in cells_of(cases[0], KINDS)]
    names = [" → ".join(_shown(one) for one in column if one) for column in columns]
    lines = ["| verb | format | " + " | ".join([*names, "gs"]) + " |", "|---" * (len(columns) + 3) + "|"]
    for case in cases:
        texts = [_short(found.get(Cell(case, *column), NOT_SHOWN)) for column in columns]
        lines.append(f"| {case.verb} | {case.format} | " + " | ".join([*texts, NOT_SHOWN]) + " |")
    return "\n".join(lines)


def _shown(kind: str) -> str:
    return "disk" if kind == "local" else kind


def _short(verdict: str) -> str:
    """A reason without its hint, and without what differs between runs."""
    return verdict.partition(". ")[0].replace("|", "/").replace("\n", " ")


def on_page(text: str) -> dict[Cell, str]:
    """The cells that a page has."""
    cases = {(case.verb, case.format, case.kind): case for case in CASES}
    found: dict[Cell, str] = {}
    for section in text.split("\n## ")[2:]:
        rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
        columns = [name.replace("disk", "local").split(" → ") for name in rows[0][2:-1]]
        kind = "copy" if len(columns[0]) == 2 else "read" if section.startswith("Only") else "inside"
        for verb, format, *verdicts in rows[2:]:
            for column, verdict in zip(columns, verdicts, strict=False):
                found[Cell(cases[verb, format, kind], *column)] = verdict
    return found


def same(verdict: str, on_page: str) -> bool:
    """Whether a verdict is what the page has."""
    return _short(verdict) == on_page

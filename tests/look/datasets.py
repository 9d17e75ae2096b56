"""The same samples in several formats, for what looks into datasets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

Rows = Sequence[dict[str, Any]]
COLUMNS = {"id": "int", "text": "str", "meta": "json"}


def lines(rows: Rows, path: Path) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=index % 2 == 0) + "\n" for index, row in enumerate(rows)))
    return path


def zipped(rows: Rows, folder: Path) -> Path:
    """A folder of two JSONL files, one of them compressed."""
    folder.mkdir()
    half = len(rows) // 2
    lines(rows[:half], folder / "a.jsonl")
    data = "".join(json.dumps(row) + "\n" for row in rows[half:])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    return folder


def shards(rows: Rows, folder: Path) -> Path:
    with ps.create(folder, format="mds", columns=COLUMNS, size_limit=400) as writer:
        for row in rows:
            writer.write(row)
    return folder


def table(rows: Rows, path: Path) -> Path:
    schema = pa.schema(
        [("id", pa.int32()), ("text", pa.string()), ("meta", pa.struct([("lang", pa.string()), ("n", pa.int64())]))]
    )
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path, row_group_size=3)
    return path


def tars(rows: Rows, folder: Path) -> Path:
    with ps.create(folder, format="webdataset", maxcount=4) as writer:
        for row in rows:
            parts = {name: json.dumps(row[name]).encode() for name in ("id", "meta") if name in row}
            writer.write({"__key__": f"k{row['id']}", "text": row["text"].encode(), "meta.json": parts["meta"]})
    return folder


MAKERS: dict[str, Callable[[Rows, Path], Path]] = {
    "a.jsonl": lines,
    "raw": zipped,
    "mds": shards,
    "a.parquet": table,
}
"""Name → what makes the same samples of rows there."""

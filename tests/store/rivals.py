"""Datasets of every format that is written, small enough to write thousands of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock as ps

_COLUMNS: dict[str, Any] = {"columns": {"text": "str"}, "size_limit": 200}
OPTIONS: dict[str, dict[str, Any]] = {
    "csv": _COLUMNS,
    "flat-tokens": {},
    "folder": {},
    "json-shards": _COLUMNS,
    "jsonl": {},
    "mds": _COLUMNS,
    "megatron": {"token_bytes": 2},
    "pbin": {"token_bytes": 2},
    "tsv": _COLUMNS,
    "webdataset": {"maxcount": 2},
    "xsv": {**_COLUMNS, "separator": ";"},
}
"""Format → options of its writer."""

FORMATS = sorted(OPTIONS)
FOLDERS = [name for name in FORMATS if name not in ("jsonl", "megatron", "pbin")]
_SUFFIX = {"jsonl": ".jsonl", "pbin": ".pbin"}


def output_of(folder: Path, format: str) -> Path:
    """Where a dataset of a format goes in a folder."""
    return folder / f"set{_SUFFIX.get(format, '')}"


def samples_of(format: str, name: str) -> list[dict[str, Any]]:
    """Samples that tell by whom they were written."""
    if format in ("flat-tokens", "megatron", "pbin"):
        return [{"tokens": [*name.encode()] * (k + 1)} for k in range(5)]
    if format in ("folder", "webdataset"):
        return [{"__key__": f"{name}/{k}" if format == "folder" else f"{name}{k}", "txt": name} for k in range(5)]
    return [{"text": f"{name} {k}"} for k in range(5)]


def write(path: Path, format: str, name: str, *, overwrite: bool = False) -> None:
    """Write a dataset."""
    with ps.create(path, format=format, overwrite=overwrite, **OPTIONS[format]) as writer:
        for sample in samples_of(format, name):
            writer.write(sample)

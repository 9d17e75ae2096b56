"""Tiny datasets of every format: written by Penstock where it writes the format, else as its own tool writes it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tests.internals import require_package as require

import penstock as ps
from penstock.testing.token_files import write_token_files

GOLDEN = Path(__file__).parent.parent / "golden"
DOCUMENTS = [[5, 6, 0], [7, 0], [0], [8, 9, 10, 0]]
ROWS = [{"n": n, "text": "x" * n} for n in range(4)]
LINES = [{"id": n, "text": f"line {n}"} for n in range(4)]
FILES = [{"__key__": f"{n}.txt", "txt": f"text {n}"} for n in range(4)]
PARTS = [{"__key__": f"k{n}", "txt": f"text {n}", "json": {"n": n}} for n in range(4)]
SAVED = [{"text": None, "label": 0}]
LEVANTER = [
    {"input_ids": np.array(one, "i4"), "assistant_masks": np.array(one, "i4") % 2}
    for one in ([1, 2, 3], [300], [7] * 20, [], [5, 6])
]
LITDATA = [{"tokens": np.array(one, "u2")} for one in ([1, 2, 3], [300], [7] * 20, [5, 6])]


@dataclass(frozen=True, slots=True)
class Made:
    """A dataset, what its samples hold, and what must be said to open it."""

    path: Path
    samples: Sequence[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def _written(path: Path, format: str, samples: Sequence[dict[str, Any]], **options: Any) -> Made:
    with ps.create(path, format=format, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return Made(path, samples)


def _documents(dtype: str = "u2") -> list[dict[str, Any]]:
    return [{"tokens": np.array(one, dtype)} for one in DOCUMENTS]


def _shards(path: Path, format: str, **options: Any) -> Made:
    return _written(path, format, ROWS, columns={"n": "int", "text": "str"}, **options)


def _raw(path: Path) -> Made:
    np.array([*chain(*DOCUMENTS)], "<u2").tofile(path)
    return Made(path, _documents(), {"layout": "uint16", "eos_id": 0})


def _datatrove(path: Path) -> Made:
    np.array([*chain(*DOCUMENTS)], "<u2").tofile(path)
    np.cumsum([len(one) for one in DOCUMENTS]).astype("<u8").tofile(f"{path}.index")
    return Made(path, _documents(), {"layout": "uint16"})


def _token_files(folder: Path) -> Made:
    files = [DOCUMENTS[:1], DOCUMENTS[1:]]
    return Made(write_token_files(folder, files, options={"eos_id": 0}), _documents())


def _many_lines(folder: Path) -> Made:
    _written(folder / "a.jsonl", "jsonl", LINES[:3])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"%s\n" % json.dumps(LINES[3]).encode()))
    return Made(folder, LINES)


def _parquet(path: Path) -> Made:
    table = require("pyarrow", extra="parquet").Table.from_pylist(ROWS)
    require("pyarrow.parquet", extra="parquet").write_table(table, path)
    return Made(path, ROWS)


MADE: dict[str, Callable[[Path], Made]] = {
    "jsonl": lambda folder: _written(folder / "a.jsonl", "jsonl", LINES),
    "pbin": lambda folder: _written(folder / "a.pbin", "pbin", _documents(), token_bytes=2, eos_id=0),
    "flat-tokens": lambda folder: _written(folder / "a.zarr", "flat-tokens", _documents("u4"), eos_id=0),
    "megatron": lambda folder: _written(folder / "a", "megatron", _documents(), token_bytes=2, eos_id=0),
    "raw-tokens": lambda folder: _raw(folder / "a.bin"),
    "datatrove": lambda folder: _datatrove(folder / "a.ds"),
    "token-files": lambda folder: _token_files(folder / "a"),
    "mds": lambda folder: _shards(folder / "a", "mds"),
    "csv": lambda folder: _shards(folder / "a", "csv"),
    "tsv": lambda folder: _shards(folder / "a", "tsv"),
    "xsv": lambda folder: _shards(folder / "a", "xsv", separator="|"),
    "json-shards": lambda folder: _shards(folder / "a", "json-shards"),
    "webdataset": lambda folder: _written(folder / "a", "webdataset", PARTS, maxcount=2),
    "folder": lambda folder: _written(folder / "a", "folder", FILES),
    "litdata": lambda folder: Made(shutil.copytree(GOLDEN / "litdata" / "tokens-uint16", folder / "a"), LITDATA),
    "levanter": lambda folder: Made(shutil.copytree(GOLDEN / "levanter" / "tokens", folder / "a"), LEVANTER),
    "parquet": lambda folder: _parquet(folder / "a.parquet"),
    "jsonl-files": lambda folder: _many_lines(folder / "a"),
    "hf": lambda folder: Made(shutil.copytree(GOLDEN / "hf" / "test", folder / "a"), SAVED),
}
"""Format → how a dataset of it is made in a folder."""

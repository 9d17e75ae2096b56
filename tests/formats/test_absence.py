"""A law over all formats: a deleted file gives the same data, or an error, and is never read as a value."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.formats import format_names

GOLDEN = Path(__file__).parents[1] / "golden"
DOCUMENTS = [np.arange(start, start + 5) for start in range(1, 60, 5)]


def tokens(format: str, name: str) -> Callable[[Path], Path]:
    """Return a maker of documents with a loss mask."""

    def make(folder: Path) -> Path:
        options: dict[str, Any] = {"token_bytes": 2, "planes": {"loss_mask": "bool"}}
        options |= {"chunk_tokens": 16, "chunk_starts": 8} if format == "flat-tokens" else {}
        with ps.create(str(folder / name), format=format, **options) as writer:
            for one in DOCUMENTS:
                writer.write({"tokens": one, "loss_mask": one % 2})
        return folder / name

    return make


def token_files(folder: Path) -> Path:
    source = tokens("pbin", "one.pbin")(folder)
    ps.convert(str(source), str(folder / "set"), to="pbin", file_tokens=20)
    for one in folder.glob("one.pbin*"):
        one.unlink()
    return folder / "set"


def shards(format: str, columns: dict[str, str], **more: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with ps.create(str(folder / "set"), format=format, columns=columns, size_limit=200, **more) as writer:
            for number in range(20):
                writer.write(dict.fromkeys(columns, f"text {number}"))
        return folder / "set"

    return make


def tars(folder: Path) -> Path:
    with ps.create(str(folder / "set"), format="webdataset", maxcount=4) as writer:
        for number in range(8):
            writer.write({"__key__": f"k{number}", "txt": b"x%d" % number})
    return folder / "set"


def jsonl(folder: Path) -> Path:
    with ps.create(str(folder / "a.jsonl"), format="jsonl") as writer:
        for number in range(5):
            writer.write({"text": f"text {number}"})
    return folder / "a.jsonl"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "a.parquet")
    return folder / "a.parquet"


def golden(*parts: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copytree(GOLDEN.joinpath(*parts), folder / "set")
        return folder / "set"

    return make


MAKERS: dict[str, Callable[[Path], Path]] = {
    "pbin": tokens("pbin", "a.pbin"),
    "megatron": tokens("megatron", "a"),
    "flat-tokens": tokens("flat-tokens", "a.zarr"),
    "token-files": token_files,
    "mds": shards("mds", {"text": "str"}),
    "json-shards": shards("json-shards", {"text": "str"}),
    "csv": shards("csv", {"text": "str"}),
    "tsv": shards("tsv", {"text": "str"}),
    "xsv": shards("xsv", {"text": "str"}, separator="|"),
    "webdataset": tars,
    "jsonl": jsonl,
    "parquet": parquet,
    "levanter": golden("levanter", "tokens"),
    "litdata": golden("litdata", "samples"),
    "hf": golden("hf", "train"),
}
NOT_NAMED = {
    "folder": "no file lists the members",
    "jsonl-files": "no file lists the lines' files",
    "raw-tokens": "one file without an index",
    "datatrove": "nothing names the index and the mask next to a file",
}
"""Format → why it can't be tried: nothing names its files. The guide lists these."""

ZEROS = {"levanter": ("assistant_masks", "zarr.json")}
"""Format → parts of paths that may be missing: levanter leaves out files of zeros, and verify warns."""


def read(path: Path, format: str) -> list[dict[str, Any]]:
    """Read all samples as plain values; parts of tars as text, with and without a dataset.yaml."""
    source: Any = ps.open(str(path), format=format)
    return [
        {name: plain(value) for name, value in source[index].items() if not name.startswith("__")}
        for index in range(len(source))
    ]


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else np.asarray(value).tolist()


def test_every_format_is_tried() -> None:
    assert set(format_names()) == {*MAKERS, *NOT_NAMED}


@pytest.mark.parametrize("format", MAKERS)
def test_a_deleted_file_is_never_read_as_a_value(tmp_path: Path, format: str) -> None:
    (tmp_path / "whole").mkdir()
    path = MAKERS[format](tmp_path / "whole")
    expected = read(path, format)
    files = sorted(one.relative_to(tmp_path / "whole") for one in (tmp_path / "whole").rglob("*") if one.is_file())
    assert files
    for number, file in enumerate(files):
        if any(part in str(file) for part in ZEROS.get(format, ())):
            continue
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        os.unlink(copy / file)
        target = copy / path.name
        try:
            found = read(target, format)
        except PenstockError:
            with pytest.raises(PenstockError):
                ps.convert(str(target), str(copy / "out.jsonl"), format=format)
        else:
            assert found == expected, file
            assert not [one for one in ps.verify(str(target), format=format) if one.code.endswith(".plane")], file

"""What the original wrote: read as it reads it, and written again byte for byte."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import encode_index, encode_merged, parse_index

import penstock as ps
from penstock.testing.equality import row_matches, same_samples

GOLDEN = Path(__file__).parents[2] / "golden" / "streaming"
VALUES: dict[str, Any] = json.loads((GOLDEN / "shards.values.json").read_text())
REGISTERED = {"json": "json-shards"}


def expected(name: str) -> list[dict[str, Any]]:
    found = VALUES[name]
    if isinstance(found, str):
        return expected(found)
    return [{column: value_of(value) for column, value in sample.items()} for sample in found]


def value_of(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    return float(form["float"]) if "float" in form else form


def seen(value: Any) -> Any:
    """Bytes as the golden file has them."""
    if not isinstance(value, bytes):
        return value
    return {"hex": value.hex()} if len(value) <= 64 else {"sha256": sha256(value).hexdigest()}


def as_seen(samples: Any) -> list[dict[str, Any]]:
    return [{name: seen(value) for name, value in sample.items()} for sample in samples]


@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("name", VALUES)
def test_read(name: str, read: Any) -> None:
    source = ps.open(GOLDEN / name, read=read)
    assert same_samples(as_seen(source), expected(name))
    batch = source.get_batch(np.arange(len(source)))
    if len(source):
        columns = {column: [seen(value) for value in values] for column, values in batch.items()}
        assert all(row_matches(columns, row, sample) for row, sample in enumerate(expected(name)))


@pytest.mark.parametrize("name", sorted({"mds_all", *VALUES}))
def test_index_again(name: str) -> None:
    data = (GOLDEN / name / "index.json").read_bytes()
    shards = parse_index(data, name).shards
    assert (encode_merged if name == "merged" else encode_index)(shards) == data


@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"merged", "mds_edge/zero_samples"}))
def test_write_again(name: str, tmp_path: Path) -> None:
    entries = json.loads((GOLDEN / name / "index.json").read_text())["shards"]
    first = entries[0]
    options = {
        key: first[key] for key in ("size_limit", "compression", "hashes", "newline", "separator") if key in first
    }
    columns = first.get("columns") or dict(zip(first["column_names"], first["column_encodings"], strict=True))
    target = tmp_path / "again"
    format_name = REGISTERED.get(first["format"], first["format"])
    with ps.create(target, format=format_name, columns=columns, **options) as writer:
        for sample in ps.open(GOLDEN / name):
            writer.write(sample)
    check_same_files(GOLDEN / name, target, (first["compression"] or "").startswith("gz"))


def test_write_all_encodings_again(tmp_path: Path) -> None:
    """34 columns; images and pickles are given as they are stored, since encoders differ between versions."""
    entry = json.loads((GOLDEN / "mds_all" / "index.json").read_text())["shards"][0]
    columns = dict(zip(entry["column_names"], entry["column_encodings"], strict=True))
    kept = {name for name, encoding in columns.items() if encoding.startswith(("pkl", "pil", "jpeg", "png", "list"))}
    source = ps.open(GOLDEN / "mds_all", columns=[name for name in columns if name not in kept])
    options = {key: entry[key] for key in ("size_limit", "compression", "hashes")}
    with ps.create(tmp_path / "again", format="mds", columns=columns, **options) as writer:
        for index in range(len(source)):
            stored = stored_values(source.place_of(index).extents[0], entry)
            writer.write(source[index] | {name: stored[name] for name in kept})
    check_same_files(GOLDEN / "mds_all", tmp_path / "again", False)


def stored_values(extent: Any, entry: Any) -> dict[str, bytes]:
    with open(extent.path, "rb") as file:
        file.seek(extent.offset_bytes)
        data = file.read(extent.length_bytes)
    sizes = np.frombuffer(data, "<u4", entry["column_sizes"].count(None)).tolist()
    at, found = 4 * len(sizes), {}
    for name, fixed in zip(entry["column_names"], entry["column_sizes"], strict=True):
        size = sizes.pop(0) if fixed is None else fixed
        found[name] = data[at : at + size]
        at += size
    return found


def check_same_files(original: Path, again: Path, gz: bool) -> None:
    """Equal bytes; a gz file holds the time of its making, so what it holds, and the index without its digest."""
    names = {path.name for path in original.iterdir()}
    assert {path.name for path in again.iterdir()} == names | {".penstock"}
    for name in names:
        ours, theirs = (again / name).read_bytes(), (original / name).read_bytes()
        if gz and name.endswith(".gz"):
            ours, theirs = gzip.decompress(ours), gzip.decompress(theirs)
        elif gz:
            ours, theirs = without_zips(ours), without_zips(theirs)
        assert ours == theirs, name


def without_zips(index: bytes) -> bytes:
    found = json.loads(index)
    for entry in found["shards"]:
        for key in ("zip_data", "zip_meta"):
            if key in entry:
                entry[key] = {**entry[key], "hashes": sorted(entry[key]["hashes"]), "bytes": 0}
    return json.dumps(found, sort_keys=True).encode()


def test_no_samples(tmp_path: Path) -> None:
    with ps.create(tmp_path / "none", format="mds", columns={"x": "bytes"}):
        pass
    original = GOLDEN / "mds_edge" / "zero_samples"
    assert (tmp_path / "none" / "index.json").read_bytes() == (original / "index.json").read_bytes()

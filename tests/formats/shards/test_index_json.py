"""`index.json` read strictly: what can't be is refused by the number of its shard."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.errors import Corrupt, PenstockError, TooLarge, Truncated, UnsafeData, Unsupported
from penstock.formats.shards.index_json import KEYS, below, encode_index, encode_merged, parse_index

FILE = {"basename": "shard.00000.mds", "bytes": 100, "hashes": {}}
MDS: dict[str, Any] = {
    "column_encodings": ["bytes"],
    "column_names": ["x"],
    "column_sizes": [None],
    "compression": None,
    "format": "mds",
    "hashes": [],
    "raw_data": FILE,
    "samples": 3,
    "size_limit": 1000,
    "version": 2,
    "zip_data": None,
}
XSV: dict[str, Any] = {
    **{key: value for key, value in MDS.items() if key != "column_sizes"},
    "column_encodings": ["str"],
    "format": "xsv",
    "newline": "\n",
    "raw_data": {**FILE, "basename": "shard.00001.xsv"},
    "raw_meta": {**FILE, "basename": "shard.00001.xsv.meta"},
    "separator": "|",
    "zip_meta": None,
}


def index_of(*shards: Any, **more: Any) -> bytes:
    return json.dumps({"shards": list(shards), "version": 2, **more}).encode()


def refused(data: bytes) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        parse_index(data, "index.json")
    assert caught.value.path == "index.json"
    return caught.value


def test_shards_and_starts() -> None:
    index = parse_index(index_of(MDS, XSV), "index.json")
    assert index.starts.tolist() == [0, 3, 6]
    assert index.starts.dtype == np.int64
    first, second = index.shards
    assert (first.layout.format, first.layout.column_sizes, first.layout.separator) == ("mds", (None,), None)
    assert (second.layout.separator, second.layout.newline) == ("|", "\n")
    assert [file.basename for file in second.files()] == ["shard.00001.xsv", "shard.00001.xsv.meta"]


def test_shards_share_their_layout() -> None:
    more = [{**MDS, "raw_data": {**FILE, "basename": f"{number}.mds"}} for number in range(5)]
    assert len({id(shard.layout) for shard in parse_index(index_of(*more), "index.json").shards}) == 1


def test_keys_of_the_table() -> None:
    assert MDS.keys() == KEYS["mds"]
    assert XSV.keys() == KEYS["xsv"]
    assert KEYS["csv"] == KEYS["tsv"] == KEYS["xsv"] - {"separator"}
    assert KEYS["json"] == KEYS["csv"] - {"column_names", "column_encodings"} | {"columns"}


def test_further_keys_at_the_top() -> None:
    assert len(parse_index(index_of(MDS, made_by={"anything": [1]}), "index.json").shards) == 1


@pytest.mark.parametrize("key", sorted(KEYS["mds"]))
def test_missing_key(key: str) -> None:
    error = refused(index_of(MDS, {name: value for name, value in MDS.items() if name != key}))
    assert isinstance(error, Corrupt | Unsupported)
    assert "shard 1" in str(error)
    assert key in str(error)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"more": 1}, Corrupt),
        ({"newline": "\n"}, Corrupt),
        ({"format": "parquet"}, Unsupported),
        ({"format": "csv"}, Corrupt),
        ({"version": 1}, Unsupported),
        ({"samples": -1}, Corrupt),
        ({"samples": 1 << 63}, Corrupt),
        ({"samples": 1.5}, Corrupt),
        ({"samples": True}, Corrupt),
        ({"samples": None}, Corrupt),
        ({"size_limit": [1]}, Corrupt),
        ({"column_names": ["x", "y"]}, Corrupt),
        ({"column_names": ["x", "x"], "column_encodings": ["str"] * 2, "column_sizes": [None] * 2}, Corrupt),
        ({"column_sizes": [-1]}, Corrupt),
        ({"column_sizes": []}, Corrupt),
        ({"raw_data": None}, Corrupt),
        ({"raw_data": {**FILE, "bytes": -1}}, Corrupt),
        ({"raw_data": {**FILE, "bytes": 1 << 70}}, Corrupt),
        ({"raw_data": {**FILE, "more": 1}}, Corrupt),
        ({"raw_data": FILE}, Corrupt),  # the first shard's
    ],
)
def test_refused(change: dict[str, Any], kind: type[PenstockError]) -> None:
    error = refused(index_of(MDS, {**MDS, "raw_data": {**FILE, "basename": "b"}, **change}))
    assert isinstance(error, kind)
    assert "shard 1" in str(error)


@pytest.mark.parametrize("name", ["/etc/passwd", "../b", "a/../b", "..", "", ".", "a/", "a/..", "b\0"])
def test_names_that_leave_the_folder(name: str) -> None:
    for key in ("raw_data", "zip_data"):
        error = refused(index_of({**MDS, key: {**FILE, "basename": name}}))
        assert isinstance(error, UnsafeData)
        assert "shard 0" in str(error)


@pytest.mark.parametrize("name", ["3/shard.00000.mds", "a/b/c", "a..b", "..a/b", "é", "a b"])
def test_names_inside_the_folder(name: str) -> None:
    parse_index(index_of({**MDS, "raw_data": {**FILE, "basename": name}}), "index.json")


def test_text_needs_a_meta_file() -> None:
    assert "raw_meta" in str(refused(index_of({**XSV, "raw_meta": None})))
    assert "newline" in str(refused(index_of({**XSV, "newline": ""})))
    assert "separator" in str(refused(index_of({**XSV, "separator": ""})))


def test_too_many_samples_in_all() -> None:
    half = {**MDS, "samples": 1 << 62}
    shards = [{**half, "raw_data": {**FILE, "basename": f"{number}"}} for number in range(3)]
    assert isinstance(refused(index_of(*shards)), TooLarge)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"\xff", b'{"shards": 1, "version": 2}', b"[" * 100_000])
def test_no_index(data: bytes) -> None:
    assert isinstance(refused(data), Corrupt if data.strip() else Truncated)


def test_another_version() -> None:
    assert isinstance(refused(b'{"version": 3, "shards": [], "new": 1}'), Unsupported)
    assert isinstance(refused(b'{"version": 3, "new": 1}'), Unsupported)
    assert isinstance(refused(b'{"version": "2", "shards": []}'), Unsupported)


def test_written_as_it_was() -> None:
    for shards in ([], [MDS], [MDS, XSV]):
        data = json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
        assert encode_index(parse_index(data, "index.json").shards) == data


def test_merged() -> None:
    shards = parse_index(index_of(MDS, XSV), "index.json").shards
    merged = json.loads(encode_merged([below(shard, "7") for shard in shards]))
    assert list(merged) == ["version", "shards"]
    assert merged["shards"][0]["raw_data"]["basename"] == "7/shard.00000.mds"
    assert merged["shards"][0]["zip_data"] is None
    assert merged["shards"][1]["raw_meta"]["basename"] == "7/shard.00001.xsv.meta"

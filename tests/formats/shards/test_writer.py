"""Folders of shards, written: where shards are cut, what is refused, and what stands beside the data."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import decode_manifest, parse_size, replace

import penstock as ps
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.formats import get_format
from penstock.store import MemoryStore
from penstock.testing.counting import CountingStore
from penstock.testing.equality import same, same_samples
from penstock.types import OpenOptions


def entries(path: Path) -> list[Any]:
    return json.loads((path / "index.json").read_text())["shards"]


def write(path: Path, samples: list[Any], **options: Any) -> Path:
    options = {"format": "mds", "columns": {"x": "bytes"}, **options}
    with ps.create(path, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def refusal(samples: Any, **options: Any) -> PenstockError:
    store = MemoryStore()
    options = {"columns": {"x": "bytes"}, **options}
    format_name = options.pop("format", "mds")

    def write_all() -> None:
        with get_format(format_name).create(store, "set", options, overwrite=False) as writer:
            for sample in samples:
                writer.write(sample)

    with pytest.raises(PenstockError) as caught:
        write_all()
    assert store.files == {}
    assert caught.value.path == "set"
    return caught.value


# --- shards --------------------------------------------------------------------------------------------------------


def test_a_shard_may_equal_the_limit_exactly(tmp_path: Path) -> None:
    sizes = [
        entry["raw_data"]["bytes"] for entry in entries(write(tmp_path / "a", [{"x": b"z" * 40}] * 9, size_limit=999))
    ]
    limit = sizes[0]
    for size_limit, count in ((limit, 1), (limit - 1, 2)):
        path = write(tmp_path / str(size_limit), [{"x": b"z" * 40}] * 9, size_limit=size_limit)
        found = entries(path)
        assert len(found) == count
        assert all((path / one["raw_data"]["basename"]).stat().st_size <= limit for one in found)


def test_the_first_sample_over_the_limit_comes_after_an_empty_shard(tmp_path: Path) -> None:
    samples = [{"x": b"a" * 900}, {"x": b"b" * 900}, {"x": b"c"}]
    path = write(tmp_path / "a", samples, size_limit=500)
    assert [entry["samples"] for entry in entries(path)] == [0, 1, 1, 1]
    assert same_samples(list(ps.open(path)), samples)
    for name in ("csv", "json-shards"):
        path = write(tmp_path / name, [{"x": "a" * 50}, {"x": "b"}], format=name, columns={"x": "str"}, size_limit=20)
        assert [entry["samples"] for entry in entries(path)] == [0, 1, 1]


def test_text_counts_rows_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"name": "1234567"}] * 8, format="csv", columns={"name": "str"}, size_limit=16)
    assert [entry["samples"] for entry in entries(path)] == [2, 2, 2, 2]
    assert (path / "shard.00000.csv").read_bytes() == b"name\n" + b"1234567\n" * 2


def test_batches_are_cut_as_samples_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids, arrays = rng.integers(0, 99, 50), rng.integers(0, 9, (50, 3)).astype(np.uint16)
    columns = {"id": "int", "n": "uint8", "free": "ndarray", "fixed": "ndarray:uint16:3", "typed": "ndarray:uint16"}
    columns |= {"word": "str_int"}
    for mixed in (False, True):
        options = {
            "columns": columns if mixed else {k: v for k, v in columns.items() if k != "word"},
            "size_limit": 600,
        }
        batch = {"id": ids, "n": ids.astype(np.uint8), "word": ids}
        batch |= {"free": arrays, "fixed": arrays.astype(">u2"), "typed": arrays}
        ones = [
            {"id": int(one), "n": int(one), "word": int(one), "free": array, "fixed": array, "typed": array}
            for one, array in zip(ids, arrays, strict=True)
        ]
        single = write(tmp_path / f"single{mixed}", ones, **options)
        with ps.create(tmp_path / f"batch{mixed}", format="mds", **options) as writer:
            writer.write_batch({name: values[:7] for name, values in batch.items()})
            writer.write_batch({name: values[7:] for name, values in batch.items()})
        files = {file.name: file.read_bytes() for file in single.iterdir()}
        assert {file.name: file.read_bytes() for file in (tmp_path / f"batch{mixed}").iterdir()} == files
        assert len(files) > 4


def test_names_of_many_shards(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"x": "v"}] * 3, format="tsv", columns={"x": "str"}, size_limit=1, compression="gz:1")
    names = {file.name for file in path.iterdir()}
    expected = {f"shard.{n:05d}.tsv{end}" for n in range(4) for end in (".gz", ".meta.gz")}
    assert names == {*expected, "index.json", ".penstock"}


def test_a_change_after_write_does_not_reach_the_file(tmp_path: Path) -> None:
    array = np.arange(4, dtype=np.uint16)
    rows = np.stack([array] * 10)
    with ps.create(tmp_path / "a", format="mds", columns={"x": "ndarray:uint16:4"}) as writer:
        writer.write({"x": array})
        writer.write_batch({"x": rows})
        array += 1
        rows += 1
    assert all(same(sample["x"], np.arange(4, dtype=np.uint16)) for sample in ps.open(tmp_path / "a"))


# --- what is refused -----------------------------------------------------------------------------------------------


def test_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "most_shard_bytes", 1000)
    error = refusal([{"x": b"z" * 300}] * 4, size_limit=None)
    assert isinstance(error, TooLarge)
    assert "sample 2" in str(error)
    assert "size_limit" in str(error)
    assert isinstance(refusal([{"x": b"z" * 2000}], size_limit=500), TooLarge)
    for name in ("csv", "json-shards"):
        assert isinstance(refusal([{"x": "z" * 600}] * 2, format=name, columns={"x": "str"}, size_limit=None), TooLarge)


@pytest.mark.parametrize(
    ("name", "options", "sample"),
    [
        ("csv", {}, {"x": "a,b"}),
        ("csv", {}, {"x": "a\nb"}),
        ("tsv", {}, {"x": "a\tb"}),
        ("csv", {"columns": {"a,b": "str"}}, None),
        ("csv", {"columns": {"a\nb": "str"}}, None),
        ("csv", {"columns": {"x": "int"}}, {"x": True}),
        ("csv", {"columns": {"x": "int"}}, {"x": 1.0}),
        ("csv", {"columns": {"x": "float"}}, {"x": 1}),
        ("csv", {}, {"x": "\ud800"}),
        ("csv", {}, {"y": "no x"}),
        ("xsv", {"separator": "||", "columns": {"x": "str", "y": "str"}}, {"x": "x|", "y": "|y"}),
        ("xsv", {"separator": "||", "columns": {"x": "str", "y": "str"}}, {"x": "x||", "y": "y"}),
        ("xsv", {"separator": "||", "columns": {"x": "str", "y": "str"}}, {"x": "x|", "y": "y"}),
        ("xsv", {}, None),
        ("xsv", {"separator": ""}, None),
        ("csv", {"newline": ""}, None),
        ("csv", {"newline": 3}, None),
        ("json-shards", {"newline": "--"}, None),
        ("json-shards", {"columns": {"x": "int"}}, {"x": True}),
        ("json-shards", {"columns": {"x": "int"}}, {"x": 1.5}),
        ("json-shards", {"columns": {"x": "float"}}, {"x": 1}),
        ("json-shards", {}, {"x": b"bytes"}),
        ("json-shards", {}, {"y": "no x"}),
        ("json-shards", {"columns": {"x": "bytes"}}, None),
        ("mds", {}, {"x": bytearray(b"a")}),
        ("mds", {}, {}),
        ("mds", {"columns": {"x": "str"}}, {"x": b"\xff"}),
        ("mds", {"columns": {"x": "json"}}, {"x": b"{"}),
        ("mds", {"columns": {"x": "int"}}, {"x": b"1234567"}),
        ("mds", {"columns": {"x": "jpeg_array"}}, {"x": []}),
        ("mds", {"columns": {"x": "strr"}}, None),
        ("mds", {"columns": {}}, None),
        ("mds", {"columns": ["x"]}, None),
        ("mds", {"columns": {1: "str"}}, None),
        ("mds", {"compression": "zstd:99"}, None),
        ("mds", {"hashes": ["sha2"]}, None),
        ("mds", {"hashes": ["sha1", "sha1"]}, None),
        ("mds", {"hashes": "sha1"}, None),
        ("mds", {"size_limit": -1}, None),
        ("mds", {"size_limit": 1 << 32}, None),
        ("mds", {"separator": "|"}, None),
    ],
)
def test_refused(name: str, options: dict[str, Any], sample: Any) -> None:
    error = refusal([] if sample is None else [sample], format=name, **{"columns": {"x": "str"}, **options})
    assert isinstance(error, ConfigError)


def test_a_refused_sample_leaves_the_writer_whole(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a", format="mds", columns={"a": "str", "b": "int"}) as writer:
        writer.write({"a": "one", "b": 1})
        with pytest.raises(ConfigError) as caught:
            writer.write({"a": "two", "b": "2"})
        assert "sample 1: column 'b'" in str(caught.value)
        with pytest.raises(ConfigError):
            writer.write_batch({"a": ["x"], "b": [1, 2]})
        writer.write({"a": "two", "b": 2})
    assert [sample["b"] for sample in ps.open(tmp_path / "a")] == [1, 2]


def test_numbers_that_are_too_long() -> None:
    for name in ("csv", "json-shards"):
        assert isinstance(refusal([{"x": 10**5000}], format=name, columns={"x": "int"}), TooLarge)


def test_numbers_of_numpy_in_lines(tmp_path: Path) -> None:
    columns = {"i": "int", "f": "float", "s": "str"}
    sample = {"i": np.int64(-3), "f": np.float64(0.1), "s": np.str_("é")}
    for name, file in (("json-shards", "shard.00000.json"), ("csv", "shard.00000.csv")):
        path = write(tmp_path / name, [sample], format=name, columns=columns)
        assert (path / file).read_bytes().splitlines()[-1] in (
            b'{"f": 0.1, "i": -3, "s": "\\u00e9"}',
            "0.1,-3,é".encode(),
        )


def test_a_newline_across_cells_is_no_newline(tmp_path: Path) -> None:
    columns = {"a": "str", "b": "str"}
    options: Any = {"format": "xsv", "columns": columns, "separator": ";", "newline": ";\n"}
    path = write(tmp_path / "a", [{"a": "x", "b": "\ny"}] * 3, **options)
    assert ps.open(path)[1] == {"a": "x", "b": "\ny"}


def test_sizes_as_the_original_takes_them() -> None:
    units = ["b", "kb", "mb"]
    assert [parse_size(f"1{unit}") for unit in units] == [1, 1024, 1 << 20]
    assert [parse_size(text) for text in ("10", "1.5kb", "1 KB", " 2Mb ", "0.5b", ".5kb")] == [
        10,
        1536,
        1024,
        2 << 20,
        0,
        512,
    ]
    assert [parse_size(size) for size in (None, 0, 7, 7.9)] == [0, 0, 7, 7]
    for wrong in ("1k", "1.5", "", "mb", "-1b", "1 0", "4gb", "1yb", True, [1], float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            parse_size(wrong)


# --- beside the data -----------------------------------------------------------------------------------------------


def test_side_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"x": b"z" * 40}] * 9, size_limit=300, hashes=["sha1"], inputs={"in": "12"})
    manifest = decode_manifest((path / ".penstock").read_bytes())
    assert manifest is not None
    assert manifest.num_samples == 9
    assert manifest.options["size_limit"] == 300
    assert manifest.inputs == {"in": "12"}
    assert manifest.block_digests.keys() == {file.name for file in path.iterdir()} - {"index.json", ".penstock"}
    assert manifest.size_bytes == sum(file.stat().st_size for file in path.iterdir() if file.name != ".penstock")
    source: Any = ps.open(path)
    assert source.manifest == manifest
    (path / "index.json").write_bytes((path / "index.json").read_bytes() + b" ")
    assert ps.open(path).manifest is None  # type: ignore[attr-defined]


def test_a_store_without_folders() -> None:
    files: dict[str, bytes] = {}
    store = CountingStore(MemoryStore(files))
    mds = get_format("mds")
    writer = mds.create(store, "set", {"columns": {"x": "bytes"}, "size_limit": 300}, overwrite=False)
    for number in range(20):
        writer.write({"x": bytes([number]) * 30})
    assert "set/index.json" not in files
    writer.commit()
    assert list(files)[-1] == "set/index.json"
    assert [sample["x"][0] for sample in mds.open(store, "set", OpenOptions())] == list(range(20))
    before = dict(files)
    for overwrite in (False, True):
        with pytest.raises(ConfigError):
            mds.create(store, "set", {"columns": {"x": "bytes"}}, overwrite=overwrite)
    other = mds.create(store, "other", {"columns": {"x": "bytes"}}, overwrite=False)
    other.write({"x": b"1"})
    other.abort()
    assert files == before


def test_the_table_is_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"x": b"a"}, {"x": b""}, {"x": b"ccc"}])
    data = (path / "shard.00000.mds").read_bytes()
    count, *places = struct.unpack_from("<5I", data)
    assert (count, len(data)) == (3, places[-1])
    assert [data[start + 4 : stop] for start, stop in pairwise(places)] == [b"a", b"", b"ccc"]

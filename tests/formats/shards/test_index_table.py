"""A large index: one table a host, with the same shards, errors and fingerprints as the parsed one."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, NotFound, PenstockError, Truncated
from penstock.formats.shards import index_table
from penstock.formats.shards.index_json import parse_index
from penstock.formats.shards.index_table import open_index
from penstock.store import LocalStore, MemoryStore
from penstock.testing.counting import CountingStore

FILE: dict[str, Any] = {"basename": "0.mds", "bytes": 100, "hashes": {}}
MDS: dict[str, Any] = {
    "column_encodings": ["bytes"], "column_names": ["x"], "column_sizes": [None], "compression": None,
    "format": "mds", "hashes": [], "raw_data": FILE, "samples": 3, "size_limit": 1000, "version": 2, "zip_data": None,
}  # fmt: skip
CSV: dict[str, Any] = {
    **{key: value for key, value in MDS.items() if key != "column_sizes"},
    "column_encodings": ["str"], "format": "csv", "newline": "\n", "raw_meta": FILE, "zip_meta": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def tables_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_table, "_SMALL_BYTES", 0)
    monkeypatch.setattr(index_table, "_RUN_BYTES", 1000)
    monkeypatch.setattr(index_table, "_HEAD_BYTES", 300)


def shard(number: int, kind: str = "mds") -> dict[str, Any]:
    def file(end: str, **hashes: str) -> dict[str, Any]:
        return {"basename": f"shard.{number:05}.{end}", "bytes": 100 + number, "hashes": hashes}

    if kind == "csv":
        meta = {"raw_meta": file("csv.meta", sha1="b"), "zip_meta": file("csv.meta.zstd")}
        return {**CSV, "compression": "zstd:3", "raw_data": file("csv"), "zip_data": file("csv.zstd"), **meta}
    return {**MDS, "samples": number % 5, "raw_data": file("mds", sha1="a" * 40, xxh64="c")}


def index_of(shards: list[Any], **more: Any) -> bytes:
    return json.dumps({**more, "shards": shards, "version": 2}).encode()


def table_of(data: bytes, folder: Path) -> index_table.OpenIndex:
    (folder / "index.json").write_bytes(data)
    return open_index(LocalStore(), str(folder))


MANY = [shard(number, "csv" if number % 7 == 3 else "mds") for number in range(60)]
PRETTY = json.dumps({"shards": MANY, "version": 2}, indent=2).encode()


@pytest.mark.parametrize(
    "data",
    [
        index_of(MANY), index_of(MANY, comment="a note"), PRETTY, index_of([]), index_of(MANY[:1]),
        json.dumps({"version": 2, "shards": MANY, "more": [{"a": 1}, {"b": [2]}]}).encode(),
        index_of(MANY, odd={"shards": [1, {"a": 1}, {"b": 2}]}),
        index_of([{**MDS, "raw_data": {**FILE, "basename": f"}}, {{\"{one}é.mds"}} for one in range(50)]),
        index_of(MANY, note="\\ \"shards\": ["),
        index_of(MANY).replace(b"}, {", b"}\n\t,\r\n{"),
    ],
)  # fmt: skip
def test_shards_are_those_of_the_parsed_index(data: bytes, tmp_path: Path) -> None:
    expected = parse_index(data, "index.json")
    found = table_of(data, tmp_path)
    for _ in range(2):
        assert list(found.shards) == list(expected.shards)
        assert found.starts.tolist() == expected.starts.tolist()
        facts = index_table.facts_of(expected.shards)
        facts.digest = found.facts.digest
        assert found.facts == facts
        found = open_index(LocalStore(), str(tmp_path))
    assert len(list((tmp_path / "cache" / "derived").glob("*.npy"))) == 1
    if len(found.shards) > 2:
        assert [one.samples for one in found.shards[1:3]] == [one.samples for one in expected.shards[1:3]]
        assert found.shards[-1] == expected.shards[-1]


def broken() -> dict[str, bytes]:
    good = index_of(MANY)
    twice = [*MANY[:50], {**MANY[0], "samples": 1}]
    return {
        "cut": good[:-400],
        "trailing comma": good.replace(b'], "version"', b',], "version"'),
        "an element that is none": good.replace(b'}, {"column', b'}, 7, {"column', 40),
        "a key more": index_of([*MANY, {**MDS, "more": 1}]),
        "a key less": index_of([*MANY, {key: value for key, value in MDS.items() if key != "samples"}]),
        "a name twice": index_of(twice),
        "a name outside": index_of([*MANY, {**MDS, "raw_data": {**FILE, "basename": "../x"}}]),
        "below zero": index_of([*MANY, {**MDS, "samples": -1}]),
        "too many": index_of([*MANY, {**MDS, "samples": (1 << 63) - 1}]),
        "another version": good.replace(b'"version": 2}', b'"version": 3}'),
        "an unknown format": index_of([*MANY, {**MDS, "format": "odd"}]),
        "no utf-8": good.replace(b"shard.00051", b"shard.\xff0051"),
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "more behind": good + b"]",
        "shards twice, the last wrong": good[:-1] + b', "shards": [7]}',
        "shards inside alone": json.dumps({"a": {"shards": MANY}, "version": 2}).encode(),
    }


@pytest.mark.parametrize("name", broken())
def test_what_is_refused_is_what_a_parse_refuses(name: str, tmp_path: Path) -> None:
    data = broken()[name]
    with pytest.raises(PenstockError) as expected:
        parse_index(data, str(tmp_path / "index.json"))
    for _ in range(2):
        with pytest.raises(PenstockError) as found:
            table_of(data, tmp_path)
        assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))
    assert not list((tmp_path / "cache" / "derived").iterdir())


def test_shards_twice_means_the_last() -> None:
    data = index_of(MANY)[:-1] + b', "shards": [' + json.dumps(MDS).encode() + b"]}"
    store = MemoryStore()
    staged = store.stage("a/index.json")
    staged.write(data)
    staged.commit()
    assert [one.raw_data.basename for one in open_index(store, "a").shards] == ["0.mds"]


def test_a_changed_index_is_another_table(tmp_path: Path) -> None:
    assert len(table_of(index_of(MANY), tmp_path).shards) == 60
    assert len(table_of(index_of(MANY[:40]), tmp_path).shards) == 40
    (tmp_path / "index.json").unlink()
    with pytest.raises(NotFound):
        open_index(LocalStore(), str(tmp_path))


def dataset(folder: Path, **options: Any) -> None:
    with ps.create(folder, format="mds", columns={"x": "int"}, size_limit=100, hashes=["sha1"], **options) as writer:
        for number in range(200):
            writer.write({"x": number})


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_sources_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None) -> None:
    dataset(tmp_path / "a", compression=compression)
    mapped: Any = ps.open(tmp_path / "a")
    monkeypatch.setattr(index_table, "_SMALL_BYTES", 1 << 20)
    parsed: Any = ps.open(tmp_path / "a")
    assert len(mapped.shards) > 20
    for name in ("fingerprint", "schema", "size_bytes", "preferred_mode", "manifest"):
        assert getattr(mapped, name) == getattr(parsed, name)
    assert mapped.details() == parsed.details()
    assert mapped.block_starts.tolist() == parsed.block_starts.tolist()
    assert mapped.get_batch([0, 199, 7])["x"].tolist() == [0, 199, 7]
    assert [mapped[one]["x"] for one in (0, 57, -1)] == [0, 57, 199]


def test_a_hash_that_some_file_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    (tmp_path / "index.json").write_bytes(index_of(MANY))
    for small in (0, 1 << 20):
        monkeypatch.setattr(index_table, "_SMALL_BYTES", small)
        with pytest.raises(ConfigError) as error:
            ps.open(tmp_path, format="mds", validate_hash="sha1")
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert "shard 3: no sha1 hash" in errors[0]


def test_a_second_process_reads_a_few_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes: list[int] = []
    plain = LocalStore.get
    for count in (300, 3000):
        (tmp_path / "index.json").write_bytes(index_of([shard(number) for number in range(count)]))
        open_index(LocalStore(), str(tmp_path))
        counting: list[int] = []

        def get(self: LocalStore, *args: Any, into: list[int] = counting) -> bytes:
            into.append(len(plain(self, *args)))
            return plain(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "get", get)
            found: Any = ps.open(tmp_path)
            assert len(found.shards) == count
            assert found.size_bytes > 0
        read_bytes.append(sum(counting))
    assert read_bytes[1] <= 1.2 * read_bytes[0]


def test_memory_of_opening_does_not_grow_and_of_making_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_table, "_RUN_BYTES", 1 << 16)
    making: list[int] = []
    opening: list[int] = []
    for count in (500, 5000):
        (tmp_path / "index.json").write_bytes(index_of([shard(number) for number in range(count)]))
        for peaks in (making, opening):
            tracemalloc.start()
            found = open_index(LocalStore(), str(tmp_path))
            assert found.shards[count // 2].samples == count // 2 % 5
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert opening[1] <= 1.2 * opening[0] < 200_000
    # Parsed they would take 900 bytes each; a file that is written is held back up to 1 MiB.
    assert making[1] - making[0] < 100 * 4500 + (1 << 20)


def test_a_store_that_neither_maps_nor_copies_reads_it(tmp_path: Path) -> None:
    table_of(index_of(MANY), tmp_path)
    store = CountingStore(LocalStore())
    assert len(open_index(store, str(tmp_path)).shards) == 60


def test_a_damaged_table_is_made_again(tmp_path: Path) -> None:
    table_of(index_of(MANY), tmp_path)
    (path,) = (tmp_path / "cache" / "derived").glob("*.npy")
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[500] ^= 255
    path.write_bytes(data)
    assert len(list(table_of(index_of(MANY), tmp_path).shards)) == 60


def test_a_small_index_makes_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_table, "_SMALL_BYTES", 1 << 20)
    found = table_of(index_of(MANY), tmp_path)
    assert isinstance(found.shards, tuple)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(Truncated):
        table_of(b"", tmp_path)
    assert np.array_equal(found.starts, parse_index(index_of(MANY), "").starts)

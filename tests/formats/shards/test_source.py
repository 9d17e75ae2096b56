"""Folders of shards, read: splits, mixtures, compressed shards, ranges, and damage that names its place."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge, Truncated, UnsafeData, Unsupported
from penstock.formats import get_format
from penstock.formats.shards.files import HEAD_BYTES
from penstock.formats.shards.index_json import below, encode_merged, parse_index
from penstock.store.local import LocalStore
from penstock.testing import FileServer
from penstock.testing.counting import CountingStore
from penstock.testing.equality import row_matches, same, same_samples
from penstock.testing.sources import SourceLaws
from penstock.types import OpenOptions, Sample

GOLDEN = Path(__file__).parents[2] / "golden" / "streaming"
TOKENS = {"columns": {"tokens": "ndarray:uint16", "id": "int"}}


def tokens(number: int) -> Sample:
    return {"id": number, "tokens": np.arange(number % 3 + 1, dtype=np.uint16) + number}


def write(path: Path, count: int = 40, **options: Any) -> list[Sample]:
    options = {"format": "mds", "size_limit": 300, **TOKENS, **options}
    samples = [tokens(number) for number in range(count)]
    with ps.create(path, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return samples


def merge(root: Path, *parts: str) -> None:
    shards = [
        below(shard, part)
        for part in parts
        for shard in parse_index((root / part / "index.json").read_bytes(), part).shards
    ]
    (root / "index.json").write_bytes(encode_merged(shards))


def open_counted(path: Path, **options: Any) -> tuple[Any, CountingStore]:
    store = CountingStore(LocalStore())
    return get_format("mds").open(store, str(path), OpenOptions(**options)), store


class TestMixed(SourceLaws):
    """One index over five formats, one of them compressed, some samples without some columns."""

    @pytest.fixture
    def expected(self) -> list[Sample]:
        rows = [{"id": number, "text": f"row {number}"} for number in range(8)]
        return [*(tokens(number) for number in range(40)), *rows * 4]

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        write(tmp_path / "0", compression="zstd")
        for part, name in enumerate(("csv", "tsv", "xsv", "json-shards"), 1):
            more = {"separator": "||"} if name == "xsv" else {}
            columns = {"id": "int", "text": "str"}
            with ps.create(tmp_path / str(part), format=name, columns=columns, size_limit=60, **more) as writer:
                for number in range(8):
                    writer.write({"id": number, "text": f"row {number}"})
        merge(tmp_path, *"01234")
        return ps.open(tmp_path)


def test_mixed_formats_open_under_each_name(tmp_path: Path) -> None:
    write(tmp_path / "0")
    with ps.create(tmp_path / "1", format="csv", columns={"id": "int"}) as writer:
        writer.write({"id": 5})
    merge(tmp_path, "0", "1")
    assert [len(ps.open(tmp_path, format=name)) for name in ("mds", "csv")] == [41, 41]
    assert ps.open(tmp_path, columns=["id"]).schema.open is False
    with pytest.raises(Unsupported) as caught:
        ps.open(tmp_path, format="tsv")
    assert "csv, mds" in str(caught.value)


def test_nested_folders() -> None:
    source: Any = ps.open(GOLDEN / "merged")
    assert len(source) == 210
    assert source[26] == {"id": 1001, "part": "p10"}
    assert len(source.block_starts) == 26


@pytest.mark.parametrize("name", ["br", "bz2", "gz", "snappy", "zstd"])
def test_compressed_only(name: str) -> None:
    source: Any = ps.open(GOLDEN / "mds_zip" / name)
    assert [source[index]["id"] for index in (59, 0, 30)] == [59, 0, 30]
    assert source.place_of(30).extents[0].path.endswith(f"shard.00001.mds.{name}")


def test_raw_beside_compressed_is_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "mds_zip" / "zstd", tmp_path / "set")
    whole = ps.open(tmp_path / "set")
    raw = bytes(whole._shard(1).view)  # type: ignore[attr-defined]
    (tmp_path / "set" / "shard.00001.mds").write_bytes(raw)
    (tmp_path / "set" / "shard.00001.mds.zstd").unlink()
    source: Any = ps.open(tmp_path / "set")
    assert same_samples(list(source), list(whole))
    assert source.place_of(30).extents[0].path.endswith("shard.00001.mds")
    (tmp_path / "set" / "shard.00001.mds").unlink()
    with pytest.raises(NotFound) as caught:
        ps.open(tmp_path / "set")[30]
    assert "shard 1" in str(caught.value)


def test_splits(tmp_path: Path) -> None:
    write(tmp_path / "train", 4)
    assert len(ps.open(tmp_path)) == 4
    write(tmp_path / "odd name", 6)
    assert len(ps.open(tmp_path)) == 4
    assert len(ps.open(tmp_path, split="odd name")) == 6
    assert len(ps.open(tmp_path / "odd name")) == 6
    assert len(ps.open(tmp_path / "train" / "index.json")) == 4
    with pytest.raises(NotFound) as caught:
        ps.open(tmp_path, format="mds", split="val")
    assert "odd name, train" in str(caught.value)
    (tmp_path / "train").rename(tmp_path / "other")
    with pytest.raises(Unsupported) as several:
        ps.open(tmp_path)
    assert "odd name/ (a dataset of shards or token files), other/ (" in str(several.value)
    with pytest.raises(ConfigError):
        ps.open(tmp_path, format="mds", split="../other")


def test_shards_that_are_unpacked_or_fetched_are_shuffled_by_blocks(tmp_path: Path) -> None:
    write(tmp_path / "raw")
    write(tmp_path / "zip", compression="zstd")
    write(tmp_path / "far")
    assert "mode=global" in str(ps.Shuffle(ps.open(tmp_path / "raw")))
    assert "mode=blocks" in str(ps.Shuffle(ps.open(tmp_path / "zip")))
    assert "mode=global" in str(ps.Shuffle(ps.open(tmp_path / "zip"), mode="global"))
    with FileServer() as server:
        server.files.update({file.name: file.read_bytes() for file in (tmp_path / "far").iterdir()})
        assert "mode=blocks" in str(ps.Shuffle(ps.open(server.url)))


def test_opening_reads_the_index_alone(tmp_path: Path) -> None:
    write(tmp_path / "set")
    source, store = open_counted(tmp_path / "set")
    assert len(source) == 40
    assert source.schema.fields
    assert source.block_starts[-1] == 40
    assert store.read_bytes == (tmp_path / "set" / "index.json").stat().st_size


def test_columns(tmp_path: Path) -> None:
    write(tmp_path / "set")
    source = ps.open(tmp_path / "set", columns=["id"])
    assert source[3] == {"id": 3}
    assert list(source.get_batch(range(20))) == ["id"]
    assert [field.name for field in source.schema.fields] == ["id"]
    with pytest.raises(ConfigError) as caught:
        ps.open(tmp_path / "set", columns=["ids"])
    assert "id, tokens" in str(caught.value)
    assert pickle.loads(pickle.dumps(source))[3] == {"id": 3}


def test_pickled_columns_need_trust() -> None:
    source = ps.open(GOLDEN / "mds_all")
    with pytest.raises(UnsafeData) as caught:
        source[0]
    assert "c_pkl" in str(caught.value)
    with pytest.raises(UnsafeData):
        source.get_batch(range(6))
    assert ps.open(GOLDEN / "mds_all", trust=True, columns=["c_pkl"])[0].keys() == {"c_pkl"}
    assert "c_pkl" not in ps.open(GOLDEN / "mds_all", columns=["c_int"])[0]


# --- ranges --------------------------------------------------------------------------------------------------------


def test_few_requests_without_maps(tmp_path: Path) -> None:
    samples = write(tmp_path / "set", size_limit=None)
    source, store = open_counted(tmp_path / "set")
    source[3]
    before = store.reads, store.read_bytes
    assert same(source[7], samples[7])
    assert (store.reads, store.read_bytes) == (before[0] + 1, before[1] + source.place_of(7).extents[0].length_bytes)
    batch = source.get_batch([5, 30, 5, 9])
    assert row_matches(batch, 1, samples[30])
    assert store.reads == before[0] + 1 + 4


def test_tables_that_are_long_are_read_by_the_pair(tmp_path: Path) -> None:
    count = HEAD_BYTES // 4 + 10
    with ps.create(tmp_path / "set", format="mds", columns={"id": "int"}) as writer:
        writer.write_batch({"id": np.arange(count)})
    source, store = open_counted(tmp_path / "set")
    before = store.read_bytes
    assert source[count - 1] == {"id": count - 1}
    assert store.read_bytes == before + 4 + 8 + 8  # how many samples, a pair of places, the sample
    batch = source.get_batch([2, count - 5, 11])
    assert batch["id"].tolist() == [2, count - 5, 11]
    assert source.place_of(2).extents[0].length_bytes == 8
    damage(tmp_path / "set" / "shard.00000.mds", 4 + 4 * 100, b"\xff\xff\xff\xff")
    with pytest.raises(Corrupt) as caught:
        source[100]
    assert (caught.value.offset_bytes, "sample 100 of shard 0" in str(caught.value)) == (404, True)


def test_pread_of_a_local_file(tmp_path: Path) -> None:
    samples = write(tmp_path / "set")
    source: Any = ps.open(tmp_path / "set", read="pread")
    assert same_samples(list(source), samples)
    assert same_samples(source.get_samples(np.array([9, 3, 9])), [samples[9], samples[3], samples[9]])
    assert same_samples(ps.open(tmp_path / "set").get_samples(np.array([9, 3])), [samples[9], samples[3]])  # type: ignore[attr-defined]


# --- damage --------------------------------------------------------------------------------------------------------


def damage(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def refused(path: Path, index: int) -> Any:
    """The error of one sample, alone and in a batch, mapped and not."""
    errors = []
    for read in ("mmap", "pread"):
        for ask in (lambda source: source[index], lambda source: source.get_batch([index] * 9)):
            with pytest.raises((Corrupt, Truncated, UnsafeData)) as caught:
                ask(ps.open(path, read=read))  # type: ignore[arg-type]
            errors.append(caught.value)
    assert {(type(error), str(error)) for error in errors} == {(type(errors[0]), str(errors[0]))}
    return errors[0]


def first_offset(path: Path) -> int:
    return int(np.frombuffer(path.read_bytes(), "<u4", 2)[1])


def test_sizes_that_do_not_fill_the_sample(tmp_path: Path) -> None:
    write(tmp_path / "set", size_limit=None)
    file = tmp_path / "set" / "shard.00000.mds"
    start = first_offset(file)
    for size in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"):
        damage(file, start, size)
        error = refused(tmp_path / "set", 0)
        assert (error.path, error.offset_bytes) == (str(file), start)
        assert "sample 0 of shard 0" in str(error)
    assert ps.open(tmp_path / "set")[1]["id"] == 1


def test_a_value_that_does_not_decode(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="mds", columns={"a": "str", "b": "str"}) as writer:
        for number in range(12):
            writer.write({"a": "first", "b": f"second {number}"})
    file = tmp_path / "set" / "shard.00000.mds"
    place = file.read_bytes().index(b"second 3")
    damage(file, place + 2, b"\xff")
    error = refused(tmp_path / "set", 3)
    assert (error.path, error.offset_bytes) == (str(file), place + 2)
    assert "sample 3 of shard 0: column 'b'" in str(error)


def test_offsets_out_of_order(tmp_path: Path) -> None:
    write(tmp_path / "set", size_limit=None)
    file = tmp_path / "set" / "shard.00000.mds"
    table = np.frombuffer(file.read_bytes(), "<u4", 42)
    for place, value in ((9, table[8] - 1), (40, table[40 + 1] + 1), (1, 8), (41, 1 << 31)):
        damage(file, 4 * place, np.uint32(value).tobytes())
        error = refused(tmp_path / "set", 0)
        assert error.path == str(file)
        assert "shard 0: sample" in str(error)
        damage(file, 4 * place, table[place].tobytes())
    refusals = ps.open(tmp_path / "set")
    assert refusals[0]["id"] == 0


def test_another_count_or_size(tmp_path: Path) -> None:
    write(tmp_path / "set", size_limit=None)
    file = tmp_path / "set" / "shard.00000.mds"
    damage(file, 0, b"\x29")
    error = refused(tmp_path / "set", 0)
    assert (error.offset_bytes, error.found) == (0, 41)
    damage(file, 0, b"\x28")
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    assert isinstance(refused(tmp_path / "set", 0), Truncated)
    file.write_bytes(data + b"\0")
    assert isinstance(refused(tmp_path / "set", 0), Corrupt)
    file.write_bytes(b"")
    assert isinstance(refused(tmp_path / "set", 0), Truncated)


def test_a_count_beyond_memory(tmp_path: Path) -> None:
    write(tmp_path / "set", size_limit=None)
    index = json.loads((tmp_path / "set" / "index.json").read_text())
    index["shards"][0]["samples"] = 1 << 40
    (tmp_path / "set" / "index.json").write_text(json.dumps(index))
    assert "shard 0" in str(refused(tmp_path / "set", 0))


def test_a_compressed_shard_that_expands_too_far(tmp_path: Path) -> None:
    write(tmp_path / "set", compression="zstd", size_limit=None)
    index = json.loads((tmp_path / "set" / "index.json").read_text())
    for size in (100, 1 << 20):
        index["shards"][0]["raw_data"]["bytes"] = size
        (tmp_path / "set" / "index.json").write_text(json.dumps(index))
        with pytest.raises((Truncated, TooLarge)) as caught:
            ps.open(tmp_path / "set")[0]
        assert caught.value.path == str(tmp_path / "set" / "shard.00000.mds.zstd")


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "set", size_limit=None)
    file = tmp_path / "set" / "shard.00000.mds"
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    error = refused(tmp_path / "set", 0)
    assert isinstance(error, UnsafeData)
    assert ps.open(tmp_path / "set", follow_links=True)[0]["id"] == 0
    (tmp_path / "set" / "inside").write_bytes((tmp_path / "elsewhere").read_bytes())
    file.unlink()
    file.symlink_to("inside")
    assert ps.open(tmp_path / "set")[0]["id"] == 0


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "set")
    (tmp_path / "set" / "shard.00002.mds").unlink()
    source: Any = ps.open(tmp_path / "set")
    first = int(source.block_starts[2])
    for ask in (lambda: source[first], lambda: source.get_batch([0, first, 1])):
        with pytest.raises(NotFound) as caught:
            ask()
        assert "shard 2" in str(caught.value)
        assert caught.value.path == str(tmp_path / "set" / "shard.00002.mds")
    assert source[first - 1]["id"] == first - 1


def test_unknown_encoding(tmp_path: Path) -> None:
    write(tmp_path / "set")
    index = (tmp_path / "set" / "index.json").read_text()
    (tmp_path / "set" / "index.json").write_text(index.replace('"int"', '"intt"'))
    with pytest.raises(Unsupported) as caught:
        ps.open(tmp_path / "set")
    assert "shard 0" in str(caught.value)
    assert "Did you mean 'int'" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b"1,x,y\n", "number of cells"),
        (b"onlyyy\n", "number of cells"),
        (b"1x,xyz\n", "the type of its column"),
        (b"1,wxyz\n"[:-1] + b"z", "a row has no newline"),
        (b"1,\xffxyz\n", "UTF-8"),
    ],
)
def test_rows_of_text_that_do_not_decode(tmp_path: Path, row: bytes, what: str) -> None:
    with ps.create(tmp_path / "set", format="csv", columns={"a": "int", "b": "str"}) as writer:
        for _ in range(10):
            writer.write({"a": 1, "b": "x" * (len(row) - 3)})
    file = tmp_path / "set" / "shard.00000.csv"
    damage(file, 4 + 3 * len(row), row)
    error = refused(tmp_path / "set", 3)
    assert what in str(error)
    assert error.path == str(file)
    assert 4 + 3 * len(row) <= error.offset_bytes < 4 + 4 * len(row)


def test_lines_of_json_that_are_anything(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="json-shards", columns={"a": "str"}) as writer:
        for _ in range(4):
            writer.write({"a": "xxxxxxxxxxxxxx"})
    file = tmp_path / "set" / "shard.00000.json"
    length = file.stat().st_size // 4
    lines = (b'{"a": NaN}', b"[1, 2]", b'{"a":' + str(1 << 70)[:16].encode() + b"}", b'{"a": "x')
    file.write_bytes(b"".join(line.ljust(length - 1) + b"\n" for line in lines))
    source = ps.open(tmp_path / "set")
    assert source[0]["a"] != source[0]["a"]
    assert source[1] == {"value": [1, 2]}
    assert source[2] == {"a": int(str(1 << 70)[:16])}
    assert refused(tmp_path / "set", 3).path == str(file)


# --- compressed shards in memory -----------------------------------------------------------------------------------


def test_values_do_not_keep_a_decompressed_shard_alive(tmp_path: Path) -> None:
    samples = write(tmp_path / "set", compression="zstd")
    source: Any = ps.open(tmp_path / "set")
    source.cache._budget_bytes = 1
    order = np.random.default_rng(0).permutation(40)
    batch = source.get_batch(order)
    assert all(row_matches(batch, row, samples[index]) for row, index in enumerate(order.tolist()))
    assert len(source._open) == 1
    (number,) = source._open
    shard = source._open[number]
    first = int(source.block_starts[number])
    for value in (source[first], source.get_samples(np.array([first]))[0]):
        assert same(value, samples[first])
        assert not np.shares_memory(value["tokens"], shard.array)


@pytest.mark.parametrize("name", ["mds_zip/zstd", "jsonl_gz", "merged"])
def test_compressed_without_maps(name: str) -> None:
    store = CountingStore(LocalStore())
    format_name = "json-shards" if name == "jsonl_gz" else "mds"
    source: Any = get_format(format_name).open(store, str(GOLDEN / name), OpenOptions())
    whole = list(ps.open(GOLDEN / name))
    order = np.random.default_rng(1).integers(0, len(whole), 30)
    batch = source.get_batch(order)
    assert all(row_matches(batch, row, whole[index]) for row, index in enumerate(order.tolist()))
    assert same_samples(source.get_samples(order), [whole[index] for index in order.tolist()])

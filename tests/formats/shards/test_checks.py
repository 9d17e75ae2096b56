"""Checking folders of shards: what is sound has no finding, what is damaged is named with shard, sample and byte."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import merge_index

import penstock as ps
from penstock.errors import ConfigError, NotFound
from penstock.types import Depth, Finding

GOLDEN = Path(__file__).parents[2] / "golden" / "streaming"
DEPTHS: tuple[Depth, ...] = ("quick", "sample", "full")
MDS = {"format": "mds", "columns": {"a": "str", "b": "int", "c": "ndarray:uint16"}}
CSV = {"format": "csv", "columns": {"a": "str", "b": "int"}}
LINES = {"format": "json-shards", "columns": {"a": "str", "b": "int"}}


def make(folder: Path, count: int = 30, **options: Any) -> Path:
    """A dataset of `count` samples in about three shards."""
    sizes = {"mds": 350 + 120 * len(options["columns"])}
    options = {"hashes": ["sha1", "xxh64"], "size_limit": sizes.get(options["format"], 120)} | options
    with ps.create(folder, **options) as writer:
        for number in range(count):
            sample = {
                "a": f"text {number}",
                "z": f"TEXT {number}",
                "b": number,
                "c": np.arange(number % 5 + 1, dtype=np.uint16),
            }
            writer.write({name: sample[name] for name in options["columns"]})
    return folder


def errors(path: Path, depth: Depth, **options: Any) -> list[Finding]:
    return [one for one in ps.verify(path, depth=depth, **options) if one.severity == "error"]


def change_index(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    (folder / ".penstock").unlink(missing_ok=True)


def offsets(folder: Path, name: str = "shard.00001.mds") -> tuple[int, ...]:
    data = (folder / name).read_bytes()
    (count,) = struct.unpack_from("<I", data)
    return struct.unpack_from(f"<{count + 1}I", data, 4)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("path", sorted(one.parent for one in GOLDEN.rglob("index.json")), ids=lambda path: path.name)
@pytest.mark.parametrize("depth", DEPTHS)
def test_what_the_original_wrote_is_sound(path: Path, depth: Depth) -> None:
    assert errors(path, depth) == []


@pytest.mark.parametrize("options", [MDS, CSV, LINES, MDS | {"compression": "zstd"}, CSV | {"compression": "gz"}])
@pytest.mark.parametrize("depth", DEPTHS)
def test_what_we_wrote_is_sound(options: dict[str, Any], depth: Depth, tmp_path: Path) -> None:
    assert ps.verify(make(tmp_path / "set", **options), depth=depth) == []


def test_all_splits_are_checked(tmp_path: Path) -> None:
    make(tmp_path / "set" / "train", **MDS)
    make(tmp_path / "set" / "val", **MDS)
    assert errors(tmp_path / "set", "full") == []
    (tmp_path / "set" / "val" / "shard.00001.mds").unlink()
    assert [one.code for one in errors(tmp_path / "set", "quick")] == ["shards.missing"]
    assert errors(tmp_path / "set", "quick", split="train") == []


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        ps.verify(tmp_path, format="mds")


def test_a_lost_index_is_a_finding(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    (folder / "index.json").unlink()
    (only,) = ps.verify(folder)
    assert (only.code, only.path) == ("shards.no-index", str(folder / "index.json"))
    assert "repair" in str(only.fix)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index.update(version=3), "version"),
        (lambda index: index["shards"][1].update(extra=1), "extra"),
        (lambda index: index["shards"][1].pop("zip_data"), "zip_data"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="../x.mds"), "points outside the"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="/etc/passwd"), "points outside the"),
        (lambda index: index["shards"][1].update(samples=2**63), "shard 1"),
        (lambda index: index["shards"][1].update(format="parquet"), "shard 1"),
    ],
)
def test_a_bad_index_is_one_finding(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    change_index(folder, change)
    (only,) = ps.verify(folder, format="mds")
    assert only.code == "shards.index"
    assert said in str(only.found)


def test_a_missing_and_a_cut_file(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **CSV)
    (folder / "shard.00001.csv.meta").unlink()
    with (folder / "shard.00002.csv").open("r+b") as file:
        file.truncate(50)
    found = errors(folder, "quick")
    assert [(one.code, Path(one.path).name) for one in found] == [
        ("shards.missing", "shard.00001.csv.meta"),
        ("shards.size", "shard.00002.csv"),
    ]
    assert found[1].offset_bytes == 50
    assert "shard 2" in str(found[1].found)


def test_a_folder_in_place_of_a_shard(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    (folder / "shard.00001.mds").unlink()
    (folder / "shard.00001.mds").mkdir()
    assert [one.code for one in errors(folder, "quick")] == ["shards.missing"]
    source = ps.open(folder)
    with pytest.raises(NotFound, match="shard 1"):
        source[int(source.block_starts[1])]


def test_an_unknown_hash_is_a_warning(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    change_index(folder, lambda index: index["shards"][1]["raw_data"]["hashes"].update(sha0="1"))
    (only,) = ps.verify(folder)
    assert (only.code, only.severity) == ("shards.unknown-hash", "warning")


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    (folder / "shard.00001.mds").rename(tmp_path / "outside.mds")
    (folder / "shard.00001.mds").symlink_to(tmp_path / "outside.mds")
    assert [one.code for one in errors(folder, "full")] == ["shards.link"]
    assert errors(folder, "full", follow_links=True) == []


def test_another_number_of_samples(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    change_index(folder, lambda index: index["shards"][1].update(samples=index["shards"][1]["samples"] + 1))
    for depth in ("quick", "sample"):
        (only,) = errors(folder, depth)
        assert (only.code, Path(only.path).name, only.offset_bytes) == ("shards.shard", "shard.00001.mds", 0)


def test_offsets_out_of_order_and_beyond_the_file(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    places = offsets(folder)
    overwrite(folder / "shard.00001.mds", 4 + 4 * 2, struct.pack("<I", places[1] - 1))
    overwrite(folder / "shard.00002.mds", 4 + 4 * 3, struct.pack("<I", 2**32 - 1))
    found = errors(folder, "sample")
    assert [(one.code, Path(one.path).name) for one in found] == [
        ("shards.shard", "shard.00001.mds"),
        ("shards.shard", "shard.00002.mds"),
    ]
    assert "sample 1" in str(found[0].found)


def test_sizes_that_do_not_fill_a_sample_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    place = offsets(folder)[3]
    overwrite(folder / "shard.00001.mds", place, struct.pack("<I", 2**32 - 1))
    found = [one for one in errors(folder, "full") if one.code == "shards.sample"]
    assert len(found) == 1
    assert (Path(found[0].path).name, found[0].offset_bytes) == ("shard.00001.mds", place)
    assert "sample 3 of shard 1" in str(found[0].found)


@pytest.mark.parametrize("options", [CSV, LINES])
def test_text_that_is_not_utf8_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **options, hashes=[])
    name = f"shard.00001.{'csv' if options is CSV else 'json'}"
    data = (folder / name).read_bytes()
    at = data.index(b"text") + 1
    overwrite(folder / name, at, b"\xff")
    (folder / ".penstock").unlink()
    (only,) = errors(folder, "full")
    assert (only.code, Path(only.path).name) == ("shards.sample", name)
    assert "sample 0 of shard 1" in str(only.found)
    assert only.offset_bytes is not None
    assert 0 <= at - only.offset_bytes < 12


def test_every_damaged_sample_counts(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", count=200, format="mds", columns={"a": "str"}, hashes=[], size_limit=None)
    for place in offsets(folder, "shard.00000.mds")[:-1]:
        overwrite(folder / "shard.00000.mds", place + 4, b"\xff")
    (folder / ".penstock").unlink()
    found = errors(folder, "full")
    assert len(found) == 21
    assert "180 more" in str(found[-1].found)


def test_a_flipped_bit_shows_at_full(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    overwrite(folder / "shard.00001.mds", offsets(folder)[2] + 10, b"T")
    assert errors(folder, "sample") == []
    assert {one.code for one in errors(folder, "full")} == {"shards.hash", "shards.digest"}
    assert {Path(one.path).name for one in errors(folder, "full")} == {"shard.00001.mds"}


@pytest.mark.parametrize("family", ["br", "bz2", "gz", "snappy", "zstd"])
def test_a_damaged_compressed_shard(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS, compression=family)
    path = folder / f"shard.00001.mds.{family}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    found = errors(folder, "full")
    assert found[0].code == "shards.hash"
    assert {Path(one.path).name.split(".")[1] for one in found} == {"00001"}


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS, compression="zstd", hashes=[])
    from tests.internals import Compression, compress

    bomb = compress(bytes(1 << 28), Compression("zstd"))
    (folder / "shard.00001.mds.zstd").write_bytes(bomb)
    change_index(folder, lambda index: index["shards"][1]["zip_data"].update(bytes=len(bomb)))
    (only,) = errors(folder, "sample")
    assert only.code == "shards.shard"
    assert "expands too far" in str(only.found)


def test_a_damaged_sample_in_a_compressed_shard_is_placed_in_its_content(tmp_path: Path) -> None:
    from tests.internals import Compression, compress, decompress

    folder = make(tmp_path / "set", format="mds", columns={"a": "str"}, compression="gz", hashes=[])
    path = folder / "shard.00001.mds.gz"
    data = bytearray(decompress(path.read_bytes(), "gz", limit_bytes=1 << 20))
    place = struct.unpack_from("<I", data, 4)[0]
    data[place + 5] = 0xFF
    packed = compress(data, Compression("gz"))
    path.write_bytes(packed)
    change_index(folder, lambda index: index["shards"][1]["zip_data"].update(bytes=len(packed)))
    (only,) = errors(folder, "full")
    assert (Path(only.path).name, only.offset_bytes) == ("shard.00001.mds.gz", place + 5)
    assert "decompressed" in str(only.found)


def test_a_foreign_shard_is_found_by_its_options(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", format="mds", columns={"a": "str"}, hashes=[])
    other = make(tmp_path / "other", format="mds", columns={"z": "str"}, hashes=[])
    shutil.copy(other / "shard.00001.mds", folder / "shard.00001.mds")
    (folder / ".penstock").unlink()
    found = errors(folder, "sample")
    assert [one.code for one in found] == ["shards.config"]
    assert "shard 1: the column_names" in str(found[0].found)


def test_options_of_the_writer_alone_are_a_warning(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", format="mds", columns={"a": "str"}, hashes=[])
    change_index(folder, lambda index: index["shards"][1].update(size_limit=5))
    (only,) = ps.verify(folder)
    assert (only.code, only.severity) == ("shards.config", "warning")


def test_garbage_in_place_of_the_options(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS, hashes=[])
    places = offsets(folder)
    overwrite(folder / "shard.00001.mds", 4 + 4 * len(places), b"#")
    (only,) = [one for one in errors(folder, "sample") if one.code == "shards.config"]
    assert (only.offset_bytes, Path(only.path).name) == (4 + 4 * len(places), "shard.00001.mds")


def test_shards_at_any_level_that_no_index_lists(tmp_path: Path) -> None:
    root = tmp_path / "set"
    parts = [make(root / name, **MDS) for name in ("0", "1/x")]
    assert merge_index(str(root)) == sum(len(list(part.glob("shard.*.mds"))) for part in parts)
    assert ps.verify(root) == []
    (root / "2").mkdir()
    stray = [root / "2" / "shard.00000.mds", root / "1" / "x" / "shard.00099.mds"]
    for one in stray:
        shutil.copy(parts[0] / "shard.00000.mds", one)
    findings = ps.verify(root)
    assert {(one.code, one.severity) for one in findings} == {("shards.unlisted", "warning")}
    assert {one.path for one in findings} == set(map(str, stray))
    with pytest.raises(ConfigError, match="a shard that no index lists"):
        merge_index(str(root), overwrite=True)
    assert merge_index(str(root), [str(part) for part in parts])
    make(root / "3", **MDS)  # a dataset of its own, which its own index lists
    assert {one.path for one in ps.verify(root)} == set(map(str, stray))


def test_shards_beside_the_index_are_a_warning(tmp_path: Path) -> None:
    folder = make(tmp_path / "set", **MDS)
    shutil.copy(folder / "shard.00001.mds", folder / "shard.00099.mds")
    assert [(one.code, one.severity) for one in ps.verify(folder)] == [("shards.unlisted", "warning")]


def test_pickles_are_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    marker = tmp_path / "ran"
    with ps.create(folder, format="mds", columns={"p": "pkl", "a": "str"}) as writer:
        writer.write({"p": pickle.dumps(_Runs(str(marker))), "a": "x"})
    for trust in (False, True):
        assert errors(folder, "full", trust=trust) == []
    assert not marker.exists()


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)

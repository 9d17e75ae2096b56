"""One index over many folders of shards, and copies of shards in one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.internals import ShardPart as Part
from tests.internals import copy_shards, merge_index

import penstock as ps
from penstock.errors import ConfigError, NotFound, Truncated
from penstock.store import LocalStore

MERGED = Path(__file__).parents[2] / "golden" / "streaming" / "merged"


def make(folder: Path, *numbers: int, **options: Any) -> Path:
    with ps.create(folder, **({"format": "mds", "columns": {"n": "int"}, "size_limit": 300} | options)) as writer:
        for number in numbers:
            writer.write({"n": number})
    return folder


def numbers_in(folder: Path) -> list[int]:
    return [sample["n"] for sample in ps.open(folder)]


# --- one index -------------------------------------------------------------------------------------------------------


def test_the_same_bytes_as_the_original_for_parts_in_its_order(tmp_path: Path) -> None:
    shutil.copytree(MERGED, tmp_path / "set")
    (tmp_path / "set" / "index.json").unlink()
    parts = sorted((tmp_path / "set").iterdir(), key=lambda path: path.name)
    merge_index(tmp_path / "set", parts)
    assert (tmp_path / "set" / "index.json").read_bytes() == (MERGED / "index.json").read_bytes()


def test_numeric_order_at_any_nesting(tmp_path: Path) -> None:
    for name, number in (("10", 3), ("2/b10", 2), ("2/b9/deep", 1), ("1", 0)):
        make(tmp_path / "set" / name, number)
    assert merge_index(tmp_path / "set") == 4
    assert numbers_in(tmp_path / "set") == [0, 1, 2, 3]
    assert ps.verify(tmp_path / "set", depth="full") == []


@pytest.mark.parametrize("form", ["csv", "json-shards", "mds"])
def test_every_format_and_mixed_ones(form: str, tmp_path: Path) -> None:
    make(tmp_path / "set" / "0", 1, 2, format=form)
    make(tmp_path / "set" / "1", 3, format="tsv", compression="gz")
    merge_index(tmp_path / "set")
    assert numbers_in(tmp_path / "set") == [1, 2, 3]


def test_parts_in_the_order_given_by_folder_or_by_index(tmp_path: Path) -> None:
    parts = [make(tmp_path / "set" / name, number) for name, number in (("a", 0), ("b", 1))]
    merge_index(tmp_path / "set", [parts[1] / "index.json", parts[0]])
    assert numbers_in(tmp_path / "set") == [1, 0]


def test_again_and_over_an_older_one(tmp_path: Path) -> None:
    make(tmp_path / "set" / "0", 0)
    merge_index(tmp_path / "set")
    before = (tmp_path / "set" / "index.json").read_bytes()
    assert merge_index(tmp_path / "set") == 1
    make(tmp_path / "set" / "1", 1)
    with pytest.raises(ConfigError, match="exists"):
        merge_index(tmp_path / "set")
    assert (tmp_path / "set" / "index.json").read_bytes() == before
    merge_index(tmp_path / "set", overwrite=True)
    assert numbers_in(tmp_path / "set") == [0, 1]


def test_a_part_that_is_merged_itself_counts_once(tmp_path: Path) -> None:
    make(tmp_path / "set" / "a" / "0", 0)
    make(tmp_path / "set" / "a" / "1", 1)
    make(tmp_path / "set" / "b", 2)
    merge_index(tmp_path / "set" / "a")
    assert merge_index(tmp_path / "set") == 3
    assert numbers_in(tmp_path / "set") == [0, 1, 2]


def test_what_can_not_be_merged(tmp_path: Path) -> None:
    inside, outside = make(tmp_path / "set" / "0", 0), make(tmp_path / "other", 1)
    with pytest.raises(ConfigError, match="outside the folder"):
        merge_index(tmp_path / "set", [inside, outside])
    with pytest.raises(ConfigError, match="outside the folder"):
        merge_index(tmp_path / "set", [tmp_path / "set"])
    with pytest.raises(ConfigError, match="used more than once"):
        merge_index(tmp_path / "set", [inside, inside])
    with pytest.raises(NotFound):
        merge_index(tmp_path / "set", [tmp_path / "set" / "gone"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no dataset in this folder"):
        merge_index(tmp_path / "empty")
    (inside / "index.json").write_text("{")
    with pytest.raises(Truncated, match=r"set/0/index\.json"):
        merge_index(tmp_path / "set")
    assert not (tmp_path / "set" / "index.json").exists()


# --- copies ----------------------------------------------------------------------------------------------------------


def copied(tmp_path: Path, *sources: Path, **options: Any) -> Path:
    store = LocalStore()
    parts = [Part(store, str(source)) for source in sources]
    copy_shards(parts, store, str(tmp_path / "out"), name="mds", inputs={}, options={"command": "merge"}, **options)
    return tmp_path / "out"


def test_shards_are_copied_byte_for_byte(tmp_path: Path) -> None:
    first = make(tmp_path / "a", *range(30), hashes=["sha1"])
    second = make(tmp_path / "b", *range(30, 50), compression="zstd", hashes=["xxh64"])
    out = copied(tmp_path, first, second)
    assert numbers_in(out) == list(range(50))
    assert ps.verify(out, depth="full") == []
    names = sorted(path.name for path in out.glob("shard.*"))
    sources = [*sorted(first.glob("shard.*")), *sorted(second.glob("shard.*"))]
    assert [(out / name).read_bytes() for name in names] == [path.read_bytes() for path in sources]
    manifest = ps.open(out).manifest
    assert (manifest.num_samples, manifest.options["command"]) == (50, "merge")
    assert manifest.size_bytes == sum(path.stat().st_size for path in [*out.glob("shard.*"), out / "index.json"])


def test_a_merged_dataset_is_copied_flat(tmp_path: Path) -> None:
    for name, number in (("0", 0), ("1", 1)):
        make(tmp_path / "set" / name, number)
    merge_index(tmp_path / "set")
    out = copied(tmp_path, tmp_path / "set")
    assert [one["raw_data"]["basename"] for one in json.loads((out / "index.json").read_text())["shards"]] == [
        "shard.00000.mds",
        "shard.00001.mds",
    ]


def test_columns_must_agree(tmp_path: Path) -> None:
    first = make(tmp_path / "a", 1)
    for number, (form, columns) in enumerate([("mds", {"n": "int32"}), ("mds", {"m": "int"}), ("csv", {"n": "int"})]):
        with ps.create(tmp_path / f"b{number}", format=form, columns=columns) as writer:
            writer.write(dict.fromkeys(columns, 1))
        with pytest.raises(ConfigError, match="different columns"):
            copied(tmp_path, first, tmp_path / f"b{number}")
    assert not (tmp_path / "out").exists()


def test_a_cut_shard_leaves_nothing(tmp_path: Path) -> None:
    first = make(tmp_path / "a", *range(30))
    with (first / "shard.00001.mds").open("r+b") as file:
        file.truncate(20)
    with pytest.raises(Truncated, match=r"shard\.00001\.mds"):
        copied(tmp_path, first)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_output_that_exists(tmp_path: Path) -> None:
    first = make(tmp_path / "a", 1)
    make(tmp_path / "out", 7)
    with pytest.raises(ConfigError, match="exists"):
        copied(tmp_path, first)
    assert numbers_in(tmp_path / "out") == [7]
    assert numbers_in(copied(tmp_path, first, overwrite=True)) == [1]

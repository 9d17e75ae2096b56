"""Rebuilding a lost or damaged index of shards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.internals import numeric_order, parse_shard_name

import penstock as ps

GOLDEN = Path(__file__).parents[2] / "golden" / "streaming"


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def written(path: Path) -> bool:
    """Whether the golden index lists shards, and was made by a writer rather than by a merge."""
    text = path.read_text()
    return bool(json.loads(text)["shards"]) and text.startswith('{"shards"')


@pytest.mark.parametrize(
    "path", sorted(one.parent for one in GOLDEN.rglob("index.json") if written(one)), ids=lambda path: path.name
)
def test_a_lost_index_comes_back_byte_for_byte(path: Path, tmp_path: Path) -> None:
    folder = copy(path, tmp_path / "set")
    (folder / "index.json").unlink()
    (planned,) = ps.repair(folder)
    assert not planned.done
    assert not (folder / "index.json").exists()
    (done,) = ps.repair(folder, write=True)
    assert done.done
    assert (folder / "index.json").read_bytes() == (path / "index.json").read_bytes()
    assert ps.repair(folder, write=True) == []


@pytest.mark.parametrize("damage", [b"", b'{"shards": [', b"\xff" * 100, b'{"shards": [], "version": 7}'])
def test_a_damaged_index_is_replaced_and_kept(damage: bytes, tmp_path: Path) -> None:
    folder = copy(GOLDEN / "mds_all", tmp_path / "set")
    (folder / "index.json").write_bytes(damage)
    (done,) = ps.repair(folder, write=True, format="mds")
    assert "index.json.bak" in done.what
    assert (folder / "index.json").read_bytes() == (GOLDEN / "mds_all" / "index.json").read_bytes()
    assert (folder / "index.json.bak").read_bytes() == damage
    (folder / "index.json").write_bytes(damage + b"!")
    ps.repair(folder, write=True, format="mds")
    assert (folder / "index.json.bak1").read_bytes() == damage + b"!"


def test_shards_that_were_left_out_come_in(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "mds_all", tmp_path / "set")
    index = json.loads((folder / "index.json").read_text())
    index["shards"].pop()
    (folder / "index.json").write_text(json.dumps(index))
    assert len(ps.repair(folder, write=True)) == 1
    assert len(ps.open(folder)) == 24


def test_folders_in_numeric_order(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        with ps.create(tmp_path / "set" / f"part-{number}", format="mds", columns={"n": "int"}, hashes=[]) as writer:
            writer.write({"n": number})
        (tmp_path / "set" / f"part-{number}" / "index.json").unlink()
    (done,) = ps.repair(tmp_path / "set", write=True, format="mds")
    assert done.done
    assert [one["n"] for one in ps.open(tmp_path / "set")] == [0, 2, 10]


def test_gaps_are_named(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "mds_all", tmp_path / "set")
    (folder / "index.json").unlink()
    (folder / "shard.00002.mds").unlink()
    (planned,) = ps.repair(folder)
    assert "missing, with their samples: shard.00002.mds" in planned.what


@pytest.mark.parametrize("damage", ["cut", "table", "options"])
def test_a_damaged_shard_is_not_left_out_in_silence(damage: str, tmp_path: Path) -> None:
    folder = copy(GOLDEN / "mds_all", tmp_path / "set")
    (folder / "index.json").unlink()
    path = folder / "shard.00003.mds"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-5:]
    elif damage == "table":
        data[4:8] = b"\xff\xff\xff\xff"
    else:
        data[4 * (int.from_bytes(data[:4], "little") + 2)] = 0xFF
    path.write_bytes(data)
    (action,) = ps.repair(folder, write=True)
    assert not action.done
    assert "shard.00003.mds" in action.what
    assert not (folder / "index.json").exists()


def test_a_missing_meta_file_is_named(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="csv", columns={"a": "str"}) as writer:
        writer.write({"a": "x"})
    (tmp_path / "set" / "index.json").unlink()
    (tmp_path / "set" / "shard.00000.csv.meta").unlink()
    (action,) = ps.repair(tmp_path / "set", write=True)
    assert not action.done
    assert "shard.00000.csv.meta" in action.what


def test_nothing_to_do(tmp_path: Path) -> None:
    assert ps.repair(GOLDEN / "mds_all") == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("shard.00000.mds", ("shard.00000.mds", "mds", False, None)),
        ("a/10/shard.123456.csv.meta.zstd", ("a/10/shard.123456.csv", "csv", True, "zstd")),
        ("shard.00000.mds.br", ("shard.00000.mds", "mds", False, "br")),
        ("shard.0.mds", None),
        ("shard.00000.mds.bak", None),
        ("index.json", None),
        ("xshard.00000.mds", None),
        ("shard.00000.json.lz4", None),
    ],
)
def test_names_of_shards(name: str, parts: Any) -> None:
    found = parse_shard_name(name)
    assert (found and (found.stem, found.format, found.is_meta, found.family)) == parts


def test_numeric_order() -> None:
    names = ["10/a", "2/a", "a", "a10", "a2", "a2b", "²/x", "1/b/3", "1/b/20"]
    assert sorted(names, key=numeric_order) == ["1/b/3", "1/b/20", "2/a", "10/a", "a", "a2", "a2b", "a10", "²/x"]

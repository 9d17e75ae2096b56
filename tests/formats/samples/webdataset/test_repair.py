"""What was made from the shards is made again from them, to the same bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.internals import prepare_webdataset

import penstock

from .conftest import write_tar

SHARDS = ("a.tar", "b.tar")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    root.mkdir()
    for name in SHARDS:
        write_tar(root / name, {f"{name[0]}{number}.{part}": b"x" for number in range(3) for part in ("txt", "bin")})
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    return root


def files_in(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file() and ".bak" not in path.name)
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


DAMAGE: dict[str, dict[str, bytes | None]] = {
    "no index of a shard": {"a.tar.idx": None},
    "an index cut": {"a.tar.idx": bytes(16)},
    "an index of zeros": {"b.tar.idx": bytes(32)},
    "no list": {".nv-meta/.info.json": None},
    "a list that is none": {".nv-meta/.info.json": b"{"},
    "nothing but splits": {".nv-meta/.info.json": None, "a.tar.idx": None, "b.tar.idx": None},
    "no database": {".nv-meta/index.sqlite": b"no database"},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_made_again(prepared: Path, damage: dict[str, bytes | None]) -> None:
    before = files_in(prepared)
    for name, content in damage.items():
        (prepared / name).unlink()
        if content is not None:
            (prepared / name).write_bytes(content)
    damaged = files_in(prepared)
    assert any(one.severity == "error" for one in penstock.verify(prepared))
    assert {Path(one.path).name for one in penstock.repair(prepared)} >= {Path(name).name for name in damage}
    assert files_in(prepared) == damaged
    assert all(one.done for one in penstock.repair(prepared, write=True))
    assert files_in(prepared) == before
    assert penstock.verify(prepared, depth="full") == []


def test_a_damaged_shard_keeps_its_index(prepared: Path) -> None:
    (prepared / "a.tar.idx").unlink()
    (prepared / "b.tar").write_bytes((prepared / "b.tar").read_bytes()[:700] + b"garbage" * 200)
    before = files_in(prepared)
    penstock.repair(prepared, write=True)
    after = files_in(prepared)
    assert after.keys() - before.keys() == {"a.tar.idx"}
    assert all(after[name] == before[name] for name in before)


def test_a_folder_that_was_never_prepared_stays(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"k.txt": b"x"})
    before = files_in(tmp_path)
    assert penstock.repair(tmp_path, write=True) == []
    assert files_in(tmp_path) == before


def test_metadata_of_media_stay(prepared: Path) -> None:
    from penstock import prepare_media

    gif = b"GIF89a" + bytes([3, 0, 2, 0, 0, 0, 0]) + b"," + bytes([0, 0, 0, 0, 1, 0, 1, 0, 0]) + b"\2\2D\1\0;"
    write_tar(prepared / "b.tar", {"i.gif": gif})
    prepare_webdataset(prepared, split_ratio=(1, 0, 0), overwrite=True)
    prepare_media(prepared, workers=1)
    with closing(sqlite3.connect(prepared / ".nv-meta" / "index.sqlite")) as connection, connection:
        connection.execute("UPDATE samples SET tar_file_id = 0")
    penstock.repair(prepared, write=True)
    source: Any = penstock.open(prepared, raw=True)
    assert source.get("i.gif") == gif
    assert source.get_media_metadata("i.gif").width == 3

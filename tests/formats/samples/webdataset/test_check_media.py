"""`verify` of what `index.sqlite` says: of media, and in the indexes of its own that find them."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

import penstock as ps
from penstock import prepare_media


def png(side: int) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (side, side)).save(made, "PNG")
    return made.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with ps.create(tmp_path / "set", format="webdataset", maxcount=3) as writer:
        for number in range(7):
            writer.write({"__key__": f"{number:03d}", "png": png(number + 1)})
    prepare_media(tmp_path / "set", by="extension")
    return tmp_path / "set"


def test_media_metadata_of_another_file(root: Path) -> None:
    assert ps.verify(root, depth="full") == []
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as index:
        index.execute(
            "UPDATE media_metadata SET metadata_json = (SELECT metadata_json FROM media_metadata "
            "WHERE entry_key = '001.png') WHERE entry_key = '004.png'"
        )
        index.commit()
    [found] = ps.verify(root, depth="full")
    assert (found.code, found.path) == ("webdataset.media-differs", str(root / "shard_000001.tar"))
    assert "width=5" in str(found.found)
    assert "width=2" in str(found.expected)


def test_media_metadata_that_are_none(root: Path) -> None:
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as index:
        index.execute("UPDATE media_metadata SET metadata_json = '{' WHERE entry_key = '004.png'")
        index.commit()
    [found] = ps.verify(root, depth="full")
    assert (found.code, found.severity) == ("webdataset.media-index", "error")


def test_an_index_of_the_database_that_finds_nothing(root: Path) -> None:
    """Rows are right one after another; only a search by key misses one."""
    path = root / ".nv-meta" / "index.sqlite"
    whole = path.read_bytes()
    place = -1
    while (place := whole.find(b"003", place + 1)) >= 0:
        path.write_bytes(whole[:place] + b"0z3" + whole[place + 3 :])
        with closing(sqlite3.connect(path)) as index:
            count = "SELECT COUNT(*) FROM samples {} WHERE sample_key = '003'"
            by_search, by_reading = (index.execute(count.format(how)).fetchone()[0] for how in ("", "NOT INDEXED"))
        if (by_search, by_reading) == (0, 1):
            break
    else:
        pytest.fail("no such place")
    assert {one.code for one in ps.verify(root, depth="full") if one.severity == "error"} == {"webdataset.sqlite"}
    assert any(action.done for action in ps.repair(root, write=True))
    assert ps.verify(root, depth="full") == []


def test_a_database_whose_samples_are_all_one_further(root: Path) -> None:
    """Their order is right, and a key finds the parts of another one."""
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as index:
        index.execute("UPDATE samples SET sample_index = sample_index + 1")
        index.commit()
    assert {one.code for one in ps.verify(root, depth="full") if one.severity == "error"} == {"webdataset.sqlite"}
    assert any(action.done for action in ps.repair(root, write=True))
    assert ps.verify(root, depth="full") == []


def test_many_shards_that_are_gone_are_not_said_one_by_one(root: Path) -> None:
    info = root / ".nv-meta" / ".info.json"
    gone = ", ".join(f'"gone_{number}.tar": 1' for number in range(300))
    info.write_text(info.read_text().replace('"shard_counts": {', f'"shard_counts": {{{gone},', 1))
    found = [one for one in ps.verify(root, depth="quick") if one.code == "webdataset.missing-shard"]
    assert 1 < len(found) < 50

"""Rows of media files: which are looked at, what they say, and what is wrong with some."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.codec.films import films
from tests.codec.pictures import encoded, picture

from penstock.codec.av_header import MediaDepth
from penstock.codec.media_bytes import media_bytes
from penstock.errors import ConfigError
from penstock.formats.samples.media_index import MediaFilter, MediaRow, encode_metadata
from penstock.formats.samples.webdataset.shards import scan_shard
from penstock.prepare.media.rows import (
    MediaProblem,
    ShardMedia,
    kind_by_header,
    kind_by_name,
    may_hold,
    media_filter,
    read_media,
)
from penstock.store.local import LocalStore

GOLDEN = Path(__file__).parents[2] / "golden" / "energon"
ROWS: dict[str, Any] = json.loads((GOLDEN / "media_rows.json").read_text(encoding="utf-8"))
EXTENSION, HEADER = MediaFilter("EXTENSION"), MediaFilter("HEADER")


def rows_of(one: ShardMedia) -> list[list[str]]:
    shards = [str(GOLDEN / "media" / f"media_{number}.tar") for number in range(2)]
    store = LocalStore()
    found = [row for shard in shards for row in one(store, shard, scan_shard(store, shard))]
    return sorted([row.name, *encode_metadata(row.metadata)] for row in found if isinstance(row, MediaRow))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("by", "rows"), [("extension", "by_extension"), ("header", "by_header")])
def test_as_the_original(by: str, rows: str, exact: bool) -> None:
    reader = pickle.loads(pickle.dumps(ShardMedia(media_filter(by), "exact" if exact else "counts")))
    assert rows_of(reader) == sorted(ROWS[rows])
    store, shard = LocalStore(), str(GOLDEN / "media" / "media_1.tar")
    told = [one.name for one in reader(store, shard, scan_shard(store, shard)) if isinstance(one, MediaProblem)]
    assert {"bad.jpg", "bad2.mp4"} <= set(told)


def test_by_glob() -> None:
    rows = rows_of(ShardMedia(media_filter("glob", "*.PNG, dir/*")))
    assert [row[0] for row in rows] == ["dir/many.1.jpg", "dir/many.2.jpg", "i1.png", "i4.PNG"]


def test_what_is_looked_at() -> None:
    assert kind_by_name("a/B.JPEG") == "image"
    assert kind_by_name("x.M4V") == "av"
    assert [kind_by_name(f"x.{name}") for name in ("jpe", "svg", "opus", "mpg", "txt", "jpg.gz")] == [None] * 6
    assert may_hold([EXTENSION], "x.jpg")
    assert not may_hold([EXTENSION], "x.bin")
    assert may_hold([EXTENSION, HEADER], "x.bin")
    assert may_hold([MediaFilter("GLOB", "*.bin,*.dat")], "dir/x.DAT")
    for name, data in films().items():
        assert kind_by_header(data[:16]) == "av", name
    for name in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "ICO"):
        assert kind_by_header((encoded(picture("RGB", 9, 9), name) or b"")[:16]) == "image", name
    assert kind_by_header(b"plain text, no media") is None


def read(name: str, data: bytes, *filters: MediaFilter, depth: MediaDepth = "counts") -> list[MediaRow | MediaProblem]:
    return list(read_media(name, media_bytes(data), filters, depth=depth))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_cut_images_are_told_of(kind: str) -> None:
    data = encoded(picture("RGB", 90, 70), kind) or b""
    assert [type(found) for found in read("a.png", data, EXTENSION)] == [MediaRow]
    row, problem = read("a.png", data[: len(data) * 2 // 3], EXTENSION)
    assert isinstance(row, MediaRow)
    assert problem == MediaProblem("a.png", f"it doesn't end like a {kind} file, so it may be truncated")
    (problem,) = read("a.png", data[: len(data) * 2 // 3], EXTENSION, depth="exact")
    assert isinstance(problem, MediaProblem)


def test_what_can_not_be_read_is_told_of_where_its_name_promised() -> None:
    for name in ("a.jpg", "a.mp4"):
        (problem,) = read(name, b"no media", EXTENSION)
        assert isinstance(problem, MediaProblem)
        assert problem.name == name
    assert read("a.bin", b"\xff\xfbnot sound", HEADER) == []
    assert read("a.txt", b"BM is how it begins", HEADER) == []
    (row,) = read("a.bin", encoded(picture("L", 3, 3), "PNG") or b"", HEADER)
    assert isinstance(row, MediaRow)
    assert read("a.txt", b"text", HEADER, EXTENSION) == []
    assert [type(one) for one in read("a.mp4", encoded(picture("L", 3, 3), "PNG") or b"", HEADER)] == [MediaRow]


@pytest.mark.parametrize(("by", "patterns"), [("name", None), ("glob", None), ("glob", " , "), ("extension", "*.jpg")])
def test_filters_that_can_not_be(by: str, patterns: str | None) -> None:
    with pytest.raises(ConfigError):
        media_filter(by, patterns)
    assert media_filter("glob", ["*.a", "*.b"]) == media_filter("glob", "*.a, *.b") == MediaFilter("GLOB", "*.a,*.b")

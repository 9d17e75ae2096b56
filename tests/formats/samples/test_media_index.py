"""The tables of media metadata, against those of the original."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock.errors import Corrupt, FormatError
from penstock.formats.samples.media_index import (
    MediaFilter,
    MediaRow,
    add_filters,
    create_tables,
    decode_metadata,
    encode_metadata,
    put_rows,
    read_filters,
    read_metadata,
    read_rows,
)
from penstock.testing.strategies import for_all
from penstock.types import AVMetadata, ImageMetadata

GOLDEN = Path(__file__).parents[2] / "golden" / "energon"
ROWS: dict[str, Any] = json.loads((GOLDEN / "media_rows.json").read_text(encoding="utf-8"))


def test_schema_and_rows_are_those_of_the_original() -> None:
    connection = sqlite3.connect(":memory:")
    create_tables(connection)
    create_tables(connection)
    put_rows(connection, [MediaRow(name, decode_metadata(kind, text)) for name, kind, text in ROWS["by_header"]])
    add_filters(connection, [(MediaFilter("EXTENSION"), "2025-01-01 12:00:00"), (MediaFilter("HEADER"), "later")])
    add_filters(connection, [(MediaFilter("EXTENSION"), "again"), (MediaFilter("GLOB", "*.a,*.b"), "last")] * 2)
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql > ''"
    schema = [list(row) for row in connection.execute(query)]
    assert schema == ROWS["schema"]
    found = connection.execute("SELECT * FROM media_metadata ORDER BY entry_key").fetchall()
    assert [list(row) for row in found] == sorted(ROWS["by_header"])
    filters = connection.execute("SELECT * FROM media_filters").fetchall()
    assert filters == [
        (1, "EXTENSION", "", "2025-01-01 12:00:00"),
        (2, "HEADER", "", "later"),
        (3, "GLOB", "*.a,*.b", "last"),
    ]


def test_the_file_of_the_original_is_read() -> None:
    path = str(GOLDEN / "filesystem" / ".nv-meta" / "index.sqlite")
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert read_metadata(connection, "sub/b.PNG", path=path) == ImageMetadata(3, 2, "PNG", "RGB")
    sound = read_metadata(connection, "sub/deep/ü sound.wav", path=path)
    assert sound == AVMetadata(audio_duration=0.05, audio_channels=1, audio_sample_rate=16000, audio_num_samples=800)
    assert read_metadata(connection, "t.txt", path=path) is None
    assert read_metadata(connection, "\udcff", path=path) is None
    assert [row.name for row in read_rows(connection, path=path)] == [row[0] for row in ROWS["filesystem"]]
    assert [one for one, _ in read_filters(connection, path=path)] == [MediaFilter("EXTENSION")]


def test_metadata_come_back() -> None:
    numbers = st.none() | st.integers(0, 1 << 40)
    seconds = st.none() | st.floats(0, 1e9)
    images = st.builds(ImageMetadata, st.integers(1), st.integers(1), st.text(), st.text())
    films = st.builds(AVMetadata, seconds, numbers, seconds, numbers, numbers, seconds, numbers, numbers, numbers)

    @for_all(images | films)
    def law(metadata: ImageMetadata | AVMetadata) -> None:
        kind, text = encode_metadata(metadata)
        assert " " not in text or '" ' in text or isinstance(metadata, ImageMetadata)
        if isinstance(metadata, ImageMetadata) and max(metadata.width, metadata.height) >= 1 << 63:
            return
        assert decode_metadata(kind, text) == metadata


@pytest.mark.parametrize(
    ("kind", "text"), [("film", "{}"), ("image", "{}"), ("image", "[1"), ("av", '{"video_fps":"x"}'), (None, "{}")]
)
def test_wrong_rows_are_refused(kind: Any, text: str) -> None:
    with pytest.raises(FormatError):
        decode_metadata(kind, text)


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE media_metadata (entry_key, metadata_type, metadata_json)")
    connection.execute("INSERT INTO media_metadata VALUES ('a.jpg', 'image', x'00')")
    with pytest.raises(Corrupt, match=r"here\.sqlite.*'a\.jpg'"):
        read_metadata(connection, "a.jpg", path="here.sqlite")
    with pytest.raises(Corrupt):
        list(read_rows(connection, path="here.sqlite"))
    (tmp_path / "no.sqlite").write_bytes(b"SQLite format 3\0" + bytes(500))
    broken = sqlite3.connect(tmp_path / "no.sqlite")
    for read in (lambda: read_metadata(broken, "a", path="p"), lambda: read_filters(broken, path="p")):
        with pytest.raises(Corrupt, match="not a valid media index"):
            read()
    broken.close()
    empty = sqlite3.connect(":memory:")
    assert read_metadata(empty, "a", path="p") is None
    assert list(read_rows(empty, path="p")) == []
    assert read_filters(empty, path="p") == []

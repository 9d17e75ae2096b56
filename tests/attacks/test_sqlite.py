"""Hostile databases in the place of `index.sqlite`: programs instead of tables, and pages that lead in circles."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.internals import FOLDER_FORMAT as FOLDER
from tests.internals import MOST_SQLITE_VALUE_BYTES, SQLITE_STEPS, SQLITE_STEPS_PER_BYTE
from tests.internals import connect_sqlite as connect
from tests.internals import connect_sqlite_to_write as connect_to_write

import penstock as ps
from penstock import prepare_media
from penstock.errors import PenstockError
from penstock.store import LocalStore, MemoryStore
from penstock.types import OpenOptions

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
PROGRAMS = {
    "view": f"CREATE VIEW media_metadata (entry_key, metadata_type, metadata_json) AS {ENDLESS} i, 'image', '' FROM n",
    "heavy view": f"CREATE VIEW media_metadata(entry_key, metadata_type, metadata_json) AS {ENDLESS} "
    "hex(zeroblob(400000000)), 'image', '' FROM n",
    "trigger": "CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT, metadata_json TEXT); "
    f"CREATE TRIGGER t BEFORE INSERT ON media_metadata BEGIN {ENDLESS} MAX(i) FROM n; END",
    "computed": "CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT, "
    "metadata_json TEXT AS (hex(zeroblob(40000)))); INSERT INTO media_metadata VALUES ('0000.png', 'image')",
    "virtual": "CREATE VIRTUAL TABLE media_metadata USING fts5(entry_key, metadata_type, metadata_json)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of pictures with an empty `.nv-meta`."""
    (tmp_path / "set" / ".nv-meta").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (2, 2)).save(tmp_path / "set" / f"{number:04d}.png")
    return tmp_path / "set"


def database(folder: Path, script: str) -> Path:
    path = folder / ".nv-meta" / "index.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(script)
    return path


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("verb", ["metadata", "check", "prepare-media"])
def test_programs_in_the_place_of_tables(name: str, verb: str, folder: Path, confined: Callable[..., Any]) -> None:
    database(folder, PROGRAMS[name])

    def metadata() -> Any:
        return ps.open(folder, format="folder").get_media_metadata("0000.png")

    def check() -> Any:
        return [one.code for one in FOLDER.check(LocalStore(), str(folder), OpenOptions(), "full") if one.code]

    verbs = {"metadata": metadata, "check": check, "prepare-media": lambda: prepare_media(folder, by="extension")}
    found = confined(verbs[verb])
    if verb == "check":
        assert "folder.media-index" in found
    else:
        assert isinstance(found, PenstockError), found
        assert "only plain tables are allowed" in str(found)


@pytest.mark.parametrize("store", [LocalStore, MemoryStore])
def test_of_a_store_of_any_kind(store: Any, folder: Path) -> None:
    path = database(folder, PROGRAMS["view"])
    given = store()
    if store is MemoryStore:
        staged = given.stage("index.sqlite")
        staged.write(path.read_bytes())
        staged.commit()
    with pytest.raises(sqlite3.DatabaseError, match="view 'media_metadata'"):
        connect(given, str(path) if store is LocalStore else "index.sqlite")


def test_steps_are_counted(folder: Path) -> None:
    path = database(folder, "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    with closing(connect(LocalStore(), str(path))) as opened:
        for _ in range(2):  # each statement has its own count
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                opened.execute(f"{ENDLESS} MAX(i) FROM n").fetchall()
            assert opened.execute("SELECT a FROM t").fetchall() == [(1,)]


def test_whole_tables_are_within_the_steps(folder: Path) -> None:
    rows = ",".join(f"('{number}')" for number in range(1_000_000, 1_050_000))
    path = database(folder, f"CREATE TABLE t (a); INSERT INTO t VALUES {rows}")
    with closing(connect(LocalStore(), str(path))) as opened:
        opened.bound(path.stat().st_size - SQLITE_STEPS // SQLITE_STEPS_PER_BYTE)  # type: ignore[attr-defined]
        for query in (
            "SELECT a, COUNT(*) FROM t GROUP BY a HAVING COUNT(*) > 1",
            "SELECT a FROM t ORDER BY a DESC",
            "SELECT a || '.' || a FROM t",
        ):
            opened.execute(query).fetchall()
            # Half of it is enough, though rows of an index of samples are four times as large.
            assert opened.left > opened.most * 0.5  # type: ignore[attr-defined]


def test_values_are_bounded(folder: Path) -> None:
    path = database(folder, "CREATE TABLE t (a)")
    with closing(connect(LocalStore(), str(path))) as opened, pytest.raises(sqlite3.DataError, match="too big"):
        opened.execute(f"SELECT zeroblob({MOST_SQLITE_VALUE_BYTES + 1})").fetchall()


def test_pages_that_lead_in_circles(folder: Path, confined: Callable[..., Any]) -> None:
    # Every child of the root is the same inner page, whose children are the same, and so on.
    page_bytes = 512
    script = f"PRAGMA page_size={page_bytes}; CREATE TABLE media_metadata (entry_key TEXT PRIMARY KEY, metadata_type "
    script += "TEXT NOT NULL, metadata_json TEXT NOT NULL);"
    path = database(folder, script)
    with closing(sqlite3.connect(path)) as made, made:
        rows = ((f"{number:06d}", "image", "x" * 100) for number in range(3000))
        made.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", rows)
        root = made.execute("SELECT rootpage FROM sqlite_master WHERE name = 'media_metadata'").fetchone()[0]
    data = bytearray(path.read_bytes())
    inner = [at // page_bytes + 1 for at in range(0, len(data), page_bytes) if at and data[at] == 5]
    assert root in inner
    chain = [root, *[page for page in inner if page != root]]
    for page, below in itertools.pairwise(chain):
        at = (page - 1) * page_bytes
        (cells,) = struct.unpack_from(">H", data, at + 3)
        for cell in range(cells):
            (place,) = struct.unpack_from(">H", data, at + 12 + 2 * cell)
            struct.pack_into(">I", data, at + place, below)
        struct.pack_into(">I", data, at + 8, below)
    path.write_bytes(data)

    def look() -> Any:
        with closing(connect(LocalStore(), str(path))) as opened:
            return len(opened.execute("SELECT entry_key, metadata_json FROM media_metadata").fetchall())

    found = confined(look)
    assert isinstance(found, sqlite3.DatabaseError), found
    shutil.copyfile(path, folder / "copy")
    assert isinstance(confined(lambda: connect_to_write(str(folder / "copy"))), sqlite3.DatabaseError)

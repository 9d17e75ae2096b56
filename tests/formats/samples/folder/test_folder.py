"""Folders of media files: against the original's, by name, with links, and with damage."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.internals import FolderRows, FolderSource, Place, encode_metadata, list_files, within
from tests.internals import part_of_name as part_of

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, UnsafeData
from penstock.formats import get_format, sniff
from penstock.store import LocalStore
from penstock.testing.counting import CountingStore
from penstock.types import ImageMetadata, OpenOptions

GOLDEN = Path(__file__).parents[3] / "golden" / "energon"
ROWS: dict[str, Any] = json.loads((GOLDEN / "media_rows.json").read_text(encoding="utf-8"))
NAMES = [".hid/h.jpg", "a.jpg", "bad.jpg", "empty.jpg", "noext", "sub/b.PNG", "sub/deep/ü sound.wav", "t.txt", "v.mp4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "filesystem", tmp_path / "media")


def test_as_the_original_prepared_it(folder: Path) -> None:
    source = ps.open(folder)
    assert isinstance(source, FolderSource)
    assert [source.key_of(index) for index in range(len(source))] == NAMES
    rows = {name: (kind, text) for name, kind, text in ROWS["filesystem"]}
    for name in NAMES:
        if name in rows:
            assert encode_metadata(source.get_media_metadata(name)) == rows[name]
        else:
            with pytest.raises(NotFound, match="prepare-media"):
                source.get_media_metadata(name)


def test_samples(folder: Path) -> None:
    raw = ps.open(folder, raw=True)
    sample = raw[NAMES.index("sub/b.PNG")]
    assert list(sample) == ["__key__", "__restore_key__", "__sources__", "PNG", "__subflavors__"]
    assert sample["PNG"] == (folder / "sub" / "b.PNG").read_bytes()
    assert sample["__sources__"][0].file_names == ("sub/b.PNG",)
    source = ps.open(folder)
    assert source[NAMES.index("sub/b.PNG")]["PNG"].size == (3, 2)
    assert source[NAMES.index("t.txt")] == {"__key__": "t.txt", "txt": "x"}
    assert source[NAMES.index("noext")][""] == (folder / "noext").read_bytes()
    with pytest.raises(Corrupt, match=r"bad\.jpg"):
        source[NAMES.index("bad.jpg")]
    assert ps.open(folder, columns=["__key__"])[0] == {"__key__": ".hid/h.jpg"}
    assert source.place_of(1).extents[0].length_bytes == (folder / "a.jpg").stat().st_size


def test_by_name(folder: Path) -> None:
    source: Any = ps.open(folder)
    assert source.get("sub/b.PNG") == (folder / "sub" / "b.PNG").read_bytes()
    assert source.index_of("t.txt") == NAMES.index("t.txt")
    for missing in ("gone.jpg", "sub", "a.jpg/x", "", "n" * 5000):
        with pytest.raises(NotFound):
            source.get(missing)
    with pytest.raises(KeyError):
        source.index_of("gone")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "x\0y"])
def test_names_that_leave_the_folder(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    source: Any = ps.open(folder)
    with pytest.raises(UnsafeData):
        source.get(name)


def test_links_are_followed_and_do_not_lead_in_circles(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.jpg").write_bytes(b"x")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again").symlink_to(folder)
    (folder / "one.jpg").symlink_to(elsewhere / "x.jpg")
    os.mkfifo(folder / "pipe.jpg")
    names = list_files(LocalStore(), str(folder))
    assert [name for name in names if name not in NAMES] == ["linked/x.jpg", "one.jpg"]
    (folder / ".nv-meta" / "more").write_bytes(b"")
    (folder / ".penstock").write_bytes(b"{}")
    assert list_files(LocalStore(), str(folder)) == names
    with pytest.raises(UnsafeData, match=r"linked|one\.jpg"):
        list_files(within(LocalStore(), str(folder)), str(folder))
    (folder / "broken.jpg").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotFound, match=r"broken\.jpg"):
        list_files(LocalStore(), str(folder))
    (folder / "broken.jpg").unlink()
    for link in ("linked", "again", "one.jpg", "pipe.jpg"):
        (folder / link).unlink()
    assert list_files(CountingStore(LocalStore()), str(folder)) == NAMES


def test_sniff(folder: Path, tmp_path: Path) -> None:
    store = LocalStore()
    assert sniff(store, str(folder)).name == "folder"
    shutil.rmtree(folder / ".nv-meta")
    assert sniff(store, str(folder)).name == "folder"
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta" / ".info.json").write_text("{}")
    assert not get_format("folder").sniff(store, str(folder)).matches
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("x")
    assert not get_format("folder").sniff(store, str(tmp_path / "texts")).matches


def test_part_names() -> None:
    names = ["a.b/c.d.txt", "a.b/c", ".hidden", "x.", "é.PNG"]
    assert [part_of(name) for name in names] == ["d.txt", "", "hidden", "", "PNG"]


# --- check and repair ------------------------------------------------------------------------------------------------


def codes(folder: Path, depth: Any = "full") -> list[str]:
    return [finding.code for finding in ps.verify(folder, depth=depth)]


def test_the_original_s_folder_is_clean(folder: Path) -> None:
    before = sorted(str(path) for path in folder.rglob("*"))
    assert codes(folder) == []
    assert sorted(str(path) for path in folder.rglob("*")) == before


def test_stale_rows_are_found_and_dropped(folder: Path) -> None:
    (folder / "a.jpg").unlink()
    assert codes(folder, "quick") == ["folder.media-stale"]
    assert [action.done for action in ps.repair(folder)] == [False]
    assert codes(folder) == ["folder.media-stale"]
    assert [action.done for action in ps.repair(folder, write=True)] == [True]
    assert codes(folder) == []
    source: Any = ps.open(folder)
    assert source.get_media_metadata("sub/b.PNG") == ImageMetadata(3, 2, "PNG", "RGB")
    first = (folder / ".nv-meta" / "index.sqlite.bak").read_bytes()
    (folder / "sub" / "b.PNG").unlink()
    assert [action.done for action in ps.repair(folder, write=True)] == [True]
    assert (folder / ".nv-meta" / "index.sqlite.bak").read_bytes() == first
    assert (folder / ".nv-meta" / "index.sqlite.bak1").exists()


def test_other_images_than_their_rows_say(folder: Path) -> None:
    shutil.copy(folder / "sub" / "b.PNG", folder / "a.jpg")
    (finding,) = ps.verify(folder, depth="full")
    assert finding.code == "folder.media-differs"
    assert "prepare-media" in str(finding.fix)


@pytest.mark.parametrize("data", [b"", b"no database at all", b"SQLite format 3\0" + bytes(300)])
def test_a_broken_media_index(folder: Path, data: bytes) -> None:
    (folder / ".nv-meta" / "index.sqlite").write_bytes(data)
    found = codes(folder)
    assert found == ([] if data == b"" else ["folder.media-index"])
    with pytest.raises((NotFound, Corrupt)):
        ps.open(folder).get_media_metadata("a.jpg")  # type: ignore[attr-defined]
    assert len(ps.open(folder)) == len(NAMES)


def test_a_row_that_is_no_metadata(folder: Path) -> None:
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as connection:
        connection.execute("UPDATE media_metadata SET metadata_json = '{' WHERE entry_key = 'a.jpg'")
    connection.close()
    assert codes(folder) == ["folder.media-index"]


def test_a_side_file_tells_of_changes(folder: Path) -> None:
    get_format("folder").write_manifest(LocalStore(), str(folder), OpenOptions())  # type: ignore[attr-defined]
    assert codes(folder) == []
    (folder / "t.txt").write_text("y")
    (folder / "noext").unlink()
    (folder / "new").write_text("")
    assert sorted(codes(folder)) == ["folder.added", "folder.changed", "folder.missing"]
    assert sorted(codes(folder, "quick")) == ["folder.added", "folder.missing"]


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sample",
    [
        {"txt": "no key"},
        {"__key__": "a"},
        {"__key__": "../up", "txt": "x"},
        {"__key__": "/abs", "txt": "x"},
        {"__key__": "a//b", "txt": "x"},
        {"__key__": "", "": b"x"},
        {"__key__": ".nv-meta/x", "txt": "x"},
        {"__key__": "side.penstock", "penstock": b"x"},
        {"__key__": "n" * 300, "txt": "x"},
        {"__key__": "a\0", "txt": "x"},
        {"__key__": "\udcff", "txt": "x"},
        {"__key__": "a", "jpg": "no bytes"},
    ],
)
def test_samples_that_make_no_file(tmp_path: Path, sample: dict[str, Any]) -> None:
    with pytest.raises(ConfigError), ps.create(tmp_path / "out", format="folder") as writer:
        writer.write(sample)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [("a.txt", "a.txt"), ("a.txt", "a.txt/b.txt"), ("d/b.txt", "d")])
def test_names_that_meet(tmp_path: Path, first: str, second: str) -> None:
    writer = ps.create(tmp_path / "out", format="folder")
    writer.write({"__key__": first, part_of(first): "x"})
    with pytest.raises(ConfigError):
        writer.write({"__key__": second, part_of(second): b"x"})
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_webdataset_s_samples_become_files(tmp_path: Path) -> None:
    with ps.create(tmp_path / "out", format="folder") as writer:
        writer.write({"__key__": "d/k", "jpg": b"J", "json": {"a": 1}, "__sources__": (), "__subflavors__": {}})
    assert (tmp_path / "out" / "d" / "k.jpg").read_bytes() == b"J"
    assert json.loads((tmp_path / "out" / "d" / "k.json").read_text()) == {"a": 1}


def test_far_files_are_read_several_at_once(folder: Path) -> None:
    """A request each: so many as a batch or a conversion has are not made one after another."""

    class Meeting(CountingStore):
        """Each of two readers waits for the other."""

        met = threading.Barrier(2)

        def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
            self.met.wait(20)
            return super().get(path, start_bytes, length_bytes)

    names = sorted(set(NAMES) - {"noext", ".hid/h.jpg", "bad.jpg"})
    store = Meeting(LocalStore())
    source = FolderSource(store, str(folder), OpenOptions(raw=True))
    batch = source.get_batch([NAMES.index(name) for name in names])
    assert batch["__key__"] == names
    rows = FolderRows(Place(store, str(folder)), source).samples(0, 6)
    assert [row["__key__"] for row in rows[:3]] == [".hid/h", "a", "bad"]
    assert rows[1]["jpg"] == (folder / "a.jpg").read_bytes()


def test_leftovers_of_other_systems_are_no_samples(tmp_path: Path) -> None:
    root = tmp_path / "files"
    for name in ("a.txt", "._a.txt", "d/b.txt", "d/._b.txt", "Thumbs.db", "d/desktop.ini", "__MACOSX/d/c.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    report = ps.convert(root, tmp_path / "tars", to="webdataset", format="folder")
    assert any(one.startswith("5 files") for one in report.lost)
    source = ps.open(tmp_path / "tars", split="train", raw=True)
    assert [(one["__key__"], one["txt"]) for one in source] == [("a", b"a.txt"), ("d/b", b"d/b.txt")]

"""Media indexes of folders and of tars: against the original's, made again, and with damage."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.codec.films import films, wav
from tests.codec.pictures import encoded, picture
from tests.internals import METADATA_WORK, MediaSummary, Place, current, place_of, replace, status_of

import penstock as ps
from penstock import prepare_media
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.executors import InlineExecutor
from penstock.store import LocalStore
from penstock.testing.cluster import upload
from penstock.testing.faults import FaultStore, count_operations
from penstock.types import ImageMetadata

GOLDEN = Path(__file__).parents[2] / "golden" / "energon"
ROWS: dict[str, Any] = json.loads((GOLDEN / "media_rows.json").read_text(encoding="utf-8"))
INDEX = Path(".nv-meta", "index.sqlite")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "filesystem", tmp_path / "media", ignore=shutil.ignore_patterns(".nv-meta"))
    return tmp_path / "media"


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "media", tmp_path / "tars")
    from tests.internals import prepare_webdataset

    prepare_webdataset(tmp_path / "tars", split_ratio=[1, 0, 0], workers=1)
    return tmp_path / "tars"


def rows(path: Path) -> list[list[str]]:
    with closing(sqlite3.connect(path / INDEX)) as connection:
        return [list(row) for row in connection.execute("SELECT * FROM media_metadata ORDER BY entry_key")]


def filters(path: Path) -> list[tuple[int, str, str]]:
    query = "SELECT filter_id, strategy, patterns FROM media_filters ORDER BY 1"
    with closing(sqlite3.connect(path / INDEX)) as connection:
        return connection.execute(query).fetchall()


def names(found: MediaSummary) -> list[str]:
    return sorted(problem.name for problem in found.problems)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_as_the_original_does(folder: Path, workers: int) -> None:
    found = prepare_media(folder, workers=workers)
    assert rows(folder) == sorted(ROWS["filesystem"])
    assert filters(folder) == [(1, "EXTENSION", "")]
    assert names(found) == ["bad.jpg", "empty.jpg"]
    assert (found.num_files, found.num_read, found.num_rows) == (7, 7, 5)
    with closing(sqlite3.connect(folder / INDEX)) as connection:
        schema = [list(row) for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")]
        assert [row for row in schema if row[3]] == ROWS["schema"]
    assert (folder / INDEX).read_bytes()[18:20] == b"\1\1"
    assert ps.open(folder).get_media_metadata("a.jpg") == ImageMetadata(8, 6, "JPEG", "RGB")  # type: ignore[attr-defined]
    assert [finding for finding in ps.verify(folder, depth="full") if finding.severity == "error"] == []


def test_the_same_files_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy2)
    prepare_media(folder, workers=2)
    prepare_media(tmp_path / "copy")
    assert (folder / INDEX).read_bytes() == (tmp_path / "copy" / INDEX).read_bytes()


def test_only_new_and_changed_files_are_read(folder: Path) -> None:
    first = prepare_media(folder)
    again = prepare_media(folder)
    assert (first.num_read, again.num_read, again.num_rows) == (7, 0, 5)
    before = (folder / INDEX).read_bytes()
    (folder / "new.png").write_bytes(encoded(picture("L", 4, 2), "PNG") or b"")
    (folder / "a.jpg").write_bytes(encoded(picture("RGB", 20, 10), "JPEG") or b"")
    (folder / "v.mp4").unlink()
    found = prepare_media(folder)
    assert found.num_read == 2
    assert (folder / INDEX).read_bytes() != before
    known = {name: json.loads(text) for name, _, text in rows(folder)}
    assert "v.mp4" not in known
    assert known["a.jpg"]["width"] == 20
    assert known["new.png"]["mode"] == "L"
    assert len(known) == 5


def test_a_side_file_of_another_index_is_not_believed(folder: Path) -> None:
    prepare_media(folder)
    with sqlite3.connect(folder / INDEX) as connection:
        connection.execute("DELETE FROM media_metadata")
    connection.close()
    assert prepare_media(folder).num_read == 7
    assert rows(folder) == sorted(ROWS["filesystem"])
    for damage in (b"", b"no map", b"\xff" * 50):
        (folder / ".nv-meta" / "index.sqlite.penstock").write_bytes(damage)
        assert prepare_media(folder).num_rows == 5
    (folder / ".nv-meta" / "index.sqlite.penstock").unlink()
    assert prepare_media(folder).num_read == 7


def test_an_index_of_the_same_size_and_edges_is_another_one(tmp_path: Path) -> None:
    """One that was put back from a backup: its rows are of files as they were then."""
    for number in range(400):
        (tmp_path / f"{number:03}.png").write_bytes(encoded(picture("L", 4, 2), "PNG") or b"")
    prepare_media(tmp_path, workers=1)
    backup = (tmp_path / INDEX).read_bytes()
    (tmp_path / "200.png").write_bytes(encoded(picture("L", 5, 2), "PNG") or b"")
    (tmp_path / f"{INDEX}.penstock").unlink()
    assert prepare_media(tmp_path, workers=1).num_read == 400
    now = (tmp_path / INDEX).read_bytes()
    assert (len(now), now[:4096], now[-4096:]) == (len(backup), backup[:4096], backup[-4096:])
    assert now != backup
    (tmp_path / INDEX).write_bytes(backup)
    prepare_media(tmp_path, workers=1)
    assert json.loads(rows(tmp_path)[200][2])["width"] == 5


def test_filters_add_up(folder: Path) -> None:
    (folder / "data.bin").write_bytes(encoded(picture("L", 4, 2), "PNG") or b"")
    assert prepare_media(folder, by="glob", patterns="*.jpg,v.*").num_rows == 3
    assert prepare_media(folder).num_rows == 5
    assert prepare_media(folder, by="header").num_rows == 7  # and `noext`, which is a PNG
    assert filters(folder) == [(1, "GLOB", "*.jpg,v.*"), (2, "EXTENSION", ""), (3, "HEADER", "")]
    assert prepare_media(folder).num_read == 0
    assert filters(folder)[-1] == (3, "HEADER", "")
    os.rename(folder / "data.bin", folder / "data.dat")
    assert prepare_media(folder).num_rows == 7
    assert "data.dat" in [row[0] for row in rows(folder)]


def test_an_index_of_the_original_goes_on(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "filesystem", tmp_path / "media")
    found = prepare_media(path, by="header")
    assert found.num_read == found.num_files
    assert [row for row in rows(path) if row[0] != "noext"] == sorted(ROWS["filesystem"])
    assert filters(path) == [(1, "EXTENSION", ""), (2, "HEADER", "")]


def test_exact_reads_again(folder: Path) -> None:
    prepare_media(folder)
    whole = encoded(picture("RGB", 90, 70), "PNG") or b""
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    assert "cut.png" in names(prepare_media(folder))
    assert "cut.png" in [row[0] for row in rows(folder)]
    found = prepare_media(folder, exact=True)
    assert found.num_read == found.num_files
    assert "cut.png" in names(found)
    assert rows(folder) == sorted(ROWS["filesystem"])
    assert prepare_media(folder, exact=True).num_read == 0


def test_counting_is_announced_and_can_be_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "films"
    folder.mkdir()
    files = {"a.mkv": films()["va.mkv"], "b.webm": films()["v.webm"], "c.mp4": films()["v.mp4"], "d.wav": wav()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    announced: list[tuple[int, int]] = []
    found = prepare_media(folder, headers_only=True, before_counting=lambda *some: announced.append(some))
    assert (found.num_read, announced) == (4, [])
    known = {name: json.loads(text) for name, _, text in rows(folder)}
    assert "video_num_frames" not in known["a.mkv"]
    assert "video_duration" not in known["b.webm"]
    assert known["a.mkv"]["video_width"] == 32
    assert (known["c.mp4"]["video_num_frames"], known["d.wav"]["audio_num_samples"]) == (6, 1600)
    found = prepare_media(folder, before_counting=lambda *some: announced.append(some))
    assert (found.num_read, announced) == (4, [(2, len(files["a.mkv"]) + len(files["b.webm"]))])
    known = {name: json.loads(text) for name, _, text in rows(folder)}
    assert (known["a.mkv"]["video_num_frames"], known["b.webm"]["video_num_frames"]) == (6, 12)
    assert prepare_media(folder, headers_only=True).num_read == 0
    with pytest.raises(ConfigError, match="can't be combined"):
        prepare_media(folder, headers_only=True, exact=True)


@pytest.mark.parametrize("damage", ["text", "cut", "zeros", "name", "name that is no text", "row"])
@pytest.mark.parametrize("kind", ["folder", "tars"])
def test_media_metadata_of_a_damaged_index(kind: str, damage: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    prepare_media(path)
    name = "v.mp4" if kind == "folder" else "v0.mp4"
    index = path / INDEX
    data = index.read_bytes()
    place = data.index(b"media_metadata")
    damaged = {
        "text": b"not a database",
        "cut": data[: len(data) // 2],
        "zeros": bytes(4096) + data[4096:],
        "name": data[:place] + b"?" + data[place + 1 :],
        "name that is no text": data[:place] + b"\xf5" + data[place + 1 :],
        "row": data.replace(b'{"video_duration"', b'{"video_dur\xf5tion"'),
    }
    index.write_bytes(damaged[damage])
    with pytest.raises((Corrupt, NotFound)) as raised:
        ps.open(path, raw=True).get_media_metadata(name)  # type: ignore[attr-defined]
    assert "prepare" in str(raised.value)
    findings = list(ps.verify(path, depth="full"))
    assert any(finding.severity == "error" for finding in findings)


def test_tars_as_the_original_does(tars: Path) -> None:
    with closing(sqlite3.connect(tars / INDEX)) as connection:
        samples = connection.execute("SELECT * FROM samples").fetchall()
        parts = connection.execute("SELECT * FROM sample_parts").fetchall()
    found = prepare_media(tars)
    assert rows(tars) == sorted(ROWS["by_extension"])
    assert names(found) == ["bad.jpg", "bad2.mp4"]
    assert prepare_media(tars).num_read == 0
    prepare_media(tars, by="header", workers=2)
    assert rows(tars) == sorted(ROWS["by_header"])
    assert filters(tars) == [(1, "EXTENSION", ""), (2, "HEADER", "")]
    with closing(sqlite3.connect(tars / INDEX)) as connection:
        assert connection.execute("SELECT * FROM samples").fetchall() == samples
        assert connection.execute("SELECT * FROM sample_parts").fetchall() == parts
    source: Any = ps.open(tars, raw=True)
    assert source.get_media_metadata("i1.png") == ImageMetadata(5, 7, "PNG", "RGBA")
    assert [finding for finding in ps.verify(tars) if finding.severity == "error"] == []


def test_a_changed_tar_is_read_again(tars: Path) -> None:
    prepare_media(tars)
    os.utime(tars / "media_0.tar", (1, 1))
    found = prepare_media(tars)
    assert 0 < found.num_read < found.num_files
    assert rows(tars) == sorted(ROWS["by_extension"])
    whole = (tars / "media_0.tar").read_bytes()
    (tars / "media_0.tar").write_bytes(whole[:5000])
    found = prepare_media(tars)
    assert [row[0] for row in rows(tars)][:2] == ["a0.wav", "a1.wav"]
    assert "i6.bmp" not in [row[0] for row in rows(tars)]


def test_many_files_and_workers(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    sound, image = wav(10), encoded(picture("L", 4, 2), "PNG") or b""
    for number in range(1200):
        (tmp_path / "many" / f"{number:05d}.{'wav' if number % 3 else 'png'}").write_bytes(
            sound if number % 3 else image
        )
    told: list[tuple[int, int]] = []
    found = prepare_media(tmp_path / "many", workers=2, progress=lambda done, total: told.append((done, total)))
    assert (found.num_read, found.num_rows, found.problems) == (1200, 1200, ())
    assert told == [(500, 1200), (1000, 1200), (1200, 1200)]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        prepare_media(tmp_path / "gone")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.md").write_text("x")
    with pytest.raises(ConfigError, match="no media files"):
        prepare_media(tmp_path / "text")
    assert sorted(os.listdir(tmp_path / "text")) == ["a.md"]
    (tmp_path / "tars" / ".nv-meta").mkdir(parents=True)
    (tmp_path / "tars" / ".nv-meta" / ".info.json").write_text('{"shard_counts": {}}')
    with pytest.raises(NotFound, match="penstock prepare"):
        prepare_media(tmp_path / "tars")


@pytest.mark.parametrize("mode", ["raise", "tear", "enospc"])
def test_faults_leave_the_old_index(folder: Path, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_media(folder)
    os.utime(folder / "a.jpg", (5, 5))
    meta = folder / ".nv-meta"
    old = {path.name: path.read_bytes() for path in meta.iterdir()}
    (folder / "new.png").write_bytes(encoded(picture("L", 4, 2), "PNG") or b"")

    def run(store: Any) -> None:
        replace(monkeypatch, "dataset_of_media", lambda path, **_: Place(store, str(path)))
        prepare_media(folder, workers=1)

    def restore() -> None:
        shutil.rmtree(meta)
        meta.mkdir()
        for name, data in old.items():
            (meta / name).write_bytes(data)

    total = count_operations(run)
    new = rows(folder)
    for number in range(1, total + 1):
        restore()
        with suppress(OSError):
            run(FaultStore(number, mode))
        assert rows(folder) in (sorted(ROWS["filesystem"]), new), number
        assert [name for name in os.listdir(meta) if name not in old] == [], number
        monkeypatch.undo()
        prepare_media(folder)
        assert rows(folder) == new


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_an_array_with_a_killed_a_doubled_and_a_missing_part(
    where: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, "files_a_task", 1)
    whole: Any = shutil.copytree(folder, tmp_path / "whole", copy_function=shutil.copy2)
    root = str(folder)
    if where == "s3":
        request.getfixturevalue("s3_server")
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        root = f"s3://bucket/{tmp_path.name}/media"
        upload(folder, root)
    expected = prepare_media(whole, executor="inline")

    class Dying(InlineExecutor):
        def map(self, fn: Any, tasks: Any) -> Any:
            yield from itertools.islice(super().map(fn, tasks), 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_media(root, part=(0, 5), executor=Dying())
    for index in (1, 1, 3, 2):
        assert prepare_media(root, part=(index, 5), executor="inline").part == (index, 5)
    assert not place_of(root).child(str(INDEX)).exists()
    before = prepare_media(root, finish=True, no_work=True)
    assert before.missing == status_of(place_of(root)).missing_shares == (0, 4)
    with pytest.raises(ConfigError, match="differs: --media"):
        prepare_media(root, by="header", finish=True)
    found = prepare_media(root, finish=True, executor="inline")
    assert (found.num_rows, found.problems) == (expected.num_rows, expected.problems)
    names = [name for name in place_of(root).names() if name.startswith(".")]
    assert names == [".hid", ".nv-meta"]
    made = place_of(root).child(str(INDEX))
    (tmp_path / "made/.nv-meta").mkdir(parents=True)
    (tmp_path / "made" / INDEX).write_bytes(made.store.get(made.path))
    assert rows(tmp_path / "made") == rows(whole)
    for late in ({"part": (4, 5)}, {"finish": True}):
        assert prepare_media(root, **late).num_read == 0  # type: ignore[arg-type]
    assert status_of(place_of(root)).complete


def test_a_share_that_looked_before_the_end_and_began_after_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would begin then nobody would end."""
    replace(monkeypatch, "files_a_task", 1)
    opened = current("open_work_of_media")

    def after_the_end(*given: Any, **options: Any) -> Any:
        replace(monkeypatch, "open_work_of_media", opened)
        prepare_media(folder, finish=True, executor="inline")
        return opened(*given, **options)

    prepare_media(folder, part=(0, 2), executor="inline")
    replace(monkeypatch, "open_work_of_media", after_the_end)
    assert prepare_media(folder, part=(1, 2), executor="inline").num_read == 0
    assert status_of(place_of(folder)).complete
    assert not (folder / METADATA_WORK).exists()


def test_alone_goes_on_but_with_other_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "files_a_task", 1)
    prepare_media(folder, part=(0, 2), executor="inline")
    read: list[str] = []
    real = current("read_media_rows")

    def reading(place: Any, files: Any, *given: Any, **more: Any) -> Any:
        read.extend(file.name for file in files)
        return real(place, files, *given, **more)

    replace(monkeypatch, "read_media_rows", reading)
    prepare_media(folder, part=(0, 2), executor="inline")
    assert read == []
    os.utime(folder / "a.jpg", (5, 5))
    with pytest.raises(PrepareError, match=r"the input a\.jpg changed after the job started"):
        prepare_media(folder, part=(1, 2), executor="inline")
    assert prepare_media(folder, executor="inline").num_rows == 5
    assert rows(folder) == sorted(ROWS["filesystem"])


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("at", ["before its side file", "before the work is thrown away", "at the last folder"])
def test_a_finisher_that_is_killed_when_the_index_is_there(
    at: str, with_old: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same array again ends well, in the same files, and leaves nothing."""
    whole: Any = shutil.copytree(folder, tmp_path / "whole", copy_function=shutil.copy2)
    shares: list[dict[str, Any]] = [{"part": (0, 2)}, {"part": (1, 2)}, {"finish": True}]
    replace(monkeypatch, "files_a_task", 1)
    prepare_media(whole, executor="inline")
    if with_old:  # of all files but one
        (folder / "a.jpg").rename(tmp_path / "a.jpg")
        prepare_media(folder, executor="inline")
        (tmp_path / "a.jpg").rename(folder / "a.jpg")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        if at == "before its side file":
            real = LocalStore.commit
            patched.setattr(LocalStore, "commit", lambda store, staged: (real(store, staged[:1]), killed()))
        elif at == "before the work is thrown away":
            replace(patched, "clear_work_of_media", killed)
        for share in shares:
            prepare_media(folder, executor="inline", **share)
        (folder / METADATA_WORK).mkdir()
    assert (folder / INDEX).exists()
    assert (folder / METADATA_WORK).exists()
    for share in shares:
        prepare_media(folder, executor="inline", **share)
    assert rows(folder) == rows(whole)
    assert sorted(os.listdir(folder)) == sorted(os.listdir(whole))
    assert sorted(os.listdir(folder / ".nv-meta")) == sorted(os.listdir(whole / ".nv-meta"))

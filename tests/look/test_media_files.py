"""`exclude`, `diff` and `purge` of folders of media files, valid or not, held against the bytes that were written."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image
from tests.internals import purge

import penstock as ps

FILES = {
    "a.jpg": b"not an image",
    "a.mp4": b"not a video",
    "a.txt": b"caf\xe9",
    "b.json": b'{"a": 1}',
    "b.webp": b"RIFF",
    "c.pkl": b"cos\nsystem\n.",
}


def _folder(path: Path) -> Path:
    path.mkdir()
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    for name, data in {**FILES, "b.png": file.getvalue()}.items():
        (path / name).write_bytes(data)
    return path


def _read(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if not one.name.startswith(".")}


def test_files_are_compared_as_they_are_stored(tmp_path: Path) -> None:
    a = _folder(tmp_path / "a")
    b = Path(shutil.copytree(a, tmp_path / "b"))
    assert ps.diff(a, b).equal
    (b / "a.mp4").write_bytes(b"another video")
    report = ps.diff(a, b)
    assert (report.only_in_a, report.only_in_b) == (1, 1)


def test_media_files_are_excluded_and_purged(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    expected = _read(folder)
    report = ps.exclude(folder, key=["a.mp4", "b.png", "a.jpg"], reason="ticket")
    assert report.added == 3
    purge(folder, tmp_path / "out")
    for name in ("a.mp4", "b.png", "a.jpg"):
        del expected[name]
    assert _read(tmp_path / "out") == expected

"""`EPath`: what programs ask paths for, here and far away."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.compat.energon.epathlib.epath import EPath
from penstock.errors import ConfigError
from penstock.testing import FileServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.tar", "b.tar", "c.txt", "sub/d.tar", "sub/deep/e1.tar", "sub/deep/e2.tar", "sub/deep/e3.tar"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "data"


PATTERNS = ("*.tar", "**/*.tar", "sub/*.tar", "**/e[1-2].tar", "sub/**", "?.t*", "sub/*/e?.tar", "x*")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_files_that_fit_a_pattern(pattern: str, folder: Path) -> None:
    wanted = {str(one) for one in folder.rglob("*") if one.is_file() and one in set(folder.glob(pattern))}
    if pattern.endswith("**"):  # files, where pathlib gives folders
        wanted = {str(one) for one in (folder / "sub").rglob("*") if one.is_file()}
    found = [str(one) for one in EPath(folder).glob(pattern)]
    assert set(found) == wanted
    assert found == sorted(found)


def test_sizes_and_names(folder: Path) -> None:
    path = EPath(folder) / "sub" / "d.tar"
    assert (path.size(), path.read_text(), path.is_file()) == (9, "sub/d.tar", True)
    assert path.with_suffix(".idx") == EPath(folder / "sub" / "d.idx")
    assert (path.parent.name, path.stem, path.suffix) == ("sub", "d", ".tar")
    with pytest.raises(ConfigError, match="only be opened for reading"):
        path.open("wb")


def test_paths_from_paths(folder: Path) -> None:
    path = EPath(folder)
    inside = path / "sub" / "d.tar"
    assert (inside.relative_to(path), path.relative_to(path)) == ("sub/d.tar", ".")
    with pytest.raises(ConfigError, match="isn't in the folder"):
        path.relative_to(inside)
    assert str(path / "/elsewhere") == "/elsewhere"
    assert (path / "s3://bucket/a").url == "s3://bucket/a"
    assert sorted([EPath("/a-b"), EPath("/a/b")]) == ["/a/b", "/a-b"]
    assert inside.local_path() == folder / "sub" / "d.tar"
    assert set(path.walk()) == {EPath(one) for one in folder.rglob("*") if one.is_file()}
    assert pickle.loads(pickle.dumps(inside)) == inside
    (path / "new" / "x.txt").write_text("written")
    assert (path / "new" / "x.txt").read_text() == "written"


def test_far_away() -> None:
    with FileServer({"c.txt": b"c.txt"}) as server:
        path = EPath(server.url) / "c.txt"
        assert (path.size(), path.read_bytes()) == (5, b"c.txt")
        with pytest.raises(ConfigError, match="isn't local"):
            path.local_path()

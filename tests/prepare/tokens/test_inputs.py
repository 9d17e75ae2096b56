"""Paths, folders and globs → files in a fixed order."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.internals import find_paths

from penstock.errors import ConfigError, Corrupt, Denied, NotFound, PenstockError, Unreachable, UnsafeData
from penstock.formats.jsonl.several import SUFFIXES
from penstock.prepare.tokens import inputs as module
from penstock.prepare.tokens.inputs import InputFile, changed_since, describe_inputs
from penstock.store import find as search
from penstock.store.find import find_files
from penstock.store.place import place_of
from penstock.testing import FileServer


def described(paths: Iterable[str | Path]) -> list[InputFile]:
    return describe_inputs([place_of(path) for path in paths])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.jsonl",
        "a/z.jsonl",
        "a.jsonl",
        "a/b/c.jsonl.zst",
        "a/x.jsonl.gz",
        "a/notes.txt",
        ".hidden/d.jsonl",
        ".e.jsonl",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({".zst": b"\x28\xb5\x2f\xfd", ".gz": b"\x1f\x8b"}.get(path.suffix, b'{"text":"a"}\n'))
    return tmp_path


def relative(tree: Path, *given: str) -> list[str]:
    return [os.path.relpath(path, tree) for path in find_paths([tree / one for one in given])]


def test_a_folder_in_byte_order(tree: Path) -> None:
    assert relative(tree, ".") == ["a.jsonl", "a/b/c.jsonl.zst", "a/x.jsonl.gz", "a/z.jsonl", "b.jsonl"]


def test_a_folder_has_the_files_that_every_verb_reads_there(tree: Path) -> None:
    (tree / "a" / "n.ndjson").write_bytes(b'{"text":"a"}\n')
    (tree / "c.ndjson.gz").write_bytes(b"\x1f\x8b")
    found = [os.path.relpath(path, tree) for path in find_files(str(tree), [SUFFIXES], "JSONL", follow_links=False)]
    assert sorted(found) == sorted(relative(tree, "."))
    assert {"a/n.ndjson", "c.ndjson.gz"} <= set(found)


def test_the_order_given_does_not_count(tree: Path) -> None:
    assert relative(tree, "b.jsonl", "a", "a.jsonl") == relative(tree, ".")
    assert relative(tree, "*.jsonl", "a/**/*.zst") == ["a.jsonl", "a/b/c.jsonl.zst", "b.jsonl"]


def test_a_path_may_name_anything(tree: Path) -> None:
    (tree / "[odd].txt").write_text("{}")
    assert relative(tree, "[odd].txt", "a/notes.txt") == ["[odd].txt", "a/notes.txt"]


def test_names_are_relative_to_what_is_shared(tree: Path) -> None:
    assert [one.name for one in described(find_paths([tree / "a.jsonl"]))] == ["a.jsonl"]
    both = described(find_paths([tree / "a/z.jsonl", tree / "b.jsonl"]))
    assert [one.name for one in both] == ["a/z.jsonl", "b.jsonl"]


def test_compression_by_content(tree: Path) -> None:
    found = described(find_paths([tree]))
    assert [one.compression for one in found] == ["none", "zstd", "gzip", "none", "none"]
    (tree / "packed").write_bytes(b"\x1f\x8b\x08")
    assert described(find_paths([tree / "packed"]))[0].compression == "gzip"


@pytest.mark.parametrize("content", [b"", b'{"text":"a"}\n'])
def test_a_name_that_lies(tree: Path, content: bytes) -> None:
    (tree / "a/x.jsonl.gz").write_bytes(content)
    with pytest.raises(Corrupt, match="the name ends in gzip"):
        described(find_paths([tree]))


def test_digests_are_of_the_content(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copy.jsonl").write_bytes((tree / "a.jsonl").read_bytes())
    one, other = described([tree / "a.jsonl", tmp_path / "copy.jsonl"])
    assert one.digest == other.digest
    assert one.digested_whole
    monkeypatch.setattr(module, "WHOLE_DIGEST_BYTES", 3)
    one, other = described([tree / "a.jsonl", tmp_path / "copy.jsonl"])
    assert one.digest == other.digest
    assert not one.digested_whole


def test_a_file_that_is_touched(tree: Path) -> None:
    found = described(find_paths([tree]))
    assert changed_since(found) is None
    os.utime(tree / "b.jsonl", (1, 1))
    changed = changed_since(found)
    assert changed is not None
    assert changed.name == "b.jsonl"
    (tree / "a.jsonl").unlink()
    changed = changed_since(found)
    assert changed is not None
    assert changed.name == "a.jsonl"


def test_refusals(tree: Path) -> None:
    (tree / "empty").mkdir()
    os.mkfifo(tree / "pipe")
    os.symlink(tree / "a", tree / "a" / "b" / "up")
    for given, error, words in [
        ([], ConfigError, "nothing to pack"),
        (["missing.jsonl"], NotFound, "no such file"),
        (["*.csv"], NotFound, "no file matches"),
        (["empty"], NotFound, "no JSONL file"),
        (["b.jsonl", "*.jsonl"], ConfigError, "listed twice"),
        (["pipe"], UnsafeData, "not a regular file"),
        (["a"], ConfigError, "points to a folder above"),
    ]:
        with pytest.raises(error, match=words):
            relative(tree, *given)


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "**",
        "*.jsonl",
        "a/**",
        "a/**/*.zst",
        "**/*.jsonl",
        "*/b/*",
        "a/*/",
        "[ab]*",
        "**/b/**",
        ".*",
        "a/.*",
        "x*/y",
    ],
)
def test_a_pattern_fits_what_it_fits_elsewhere(tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.chdir(tree)
    (tree / "a" / ".hidden").mkdir()
    (tree / "a" / ".hidden" / "x.jsonl").write_text("{}\n")
    (tree / "a" / "gone").symlink_to("nowhere")
    for start in ("", f"{tree}/"):
        parts = (start + pattern).lstrip("/").split("/")
        found = map(os.path.normpath, search._matches("/" if start else "", parts))
        expected = {os.path.normpath(one) for one in glob.glob(start + pattern, recursive=True)}
        assert set(found) | {"."} == expected | {"."}


@pytest.mark.parametrize("pattern", ["**", "**/*.jsonl", "a/**", "*/*/*.zst", "a/b/*"])
def test_a_folder_that_cannot_be_searched_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    scandir = os.scandir

    def refused(path: str) -> Any:
        if os.path.basename(path.rstrip("/")) == "b":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*a/b"):
        find_paths([tree / pattern])


@pytest.mark.parametrize(("error", "is_told"), [(errno.EIO, True), (errno.EACCES, True), (errno.ELOOP, False)])
def test_what_may_be_a_folder_is_not_left_out(
    tree: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_told: bool
) -> None:
    """A link whose target can't be asked for may hold documents; one that leads to itself holds none."""
    (tree / "far").symlink_to(tree / "a")
    expected = [name for name in relative(tree, ".") if not name.startswith("far")]

    class Entry:
        def __init__(self, entry: Any) -> None:
            self.name, self.path, self.is_symlink, self.stat = entry.name, entry.path, entry.is_symlink, entry.stat
            self._entry = entry

        def is_dir(self) -> bool:
            if self.name == "far":
                raise OSError(error, os.strerror(error), self.path)
            return self._entry.is_dir()

    scandir = os.scandir

    @contextlib.contextmanager
    def listed(path: str) -> Iterator[Iterator[Entry]]:
        with scandir(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(search, "os", SimpleNamespace(**{**vars(os), "scandir": listed}))
    if is_told:
        with pytest.raises(OSError, match="far"):
            find_paths([tree])
    else:
        assert relative(tree, ".") == expected


@pytest.mark.parametrize(("error", "is_told"), [(Unreachable, True), (Denied, False)])
def test_a_store_that_does_not_answer_shows_no_list(
    error: type[PenstockError], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a list lies beside data that are far away is known, or is an error; who may not look sees none."""

    def refuse(_: object, path: str) -> Any:
        raise error("no answer", path=path)

    with FileServer({"a.jsonl": b'{"text": "a"}\n'}) as server:
        inputs = described([f"{server.url}/a.jsonl"])
        monkeypatch.setattr(type(inputs[0].place.store), "exists", refuse)
        if is_told:
            with pytest.raises(Unreachable):
                module.without_excluded(inputs)
        else:
            assert module.without_excluded(inputs) == inputs


def test_a_pattern_that_fits_a_folder_and_its_files(tree: Path) -> None:
    assert relative(tree, "[ab]*") == relative(tree, "a", "a.jsonl", "b.jsonl")
    assert len(relative(tree, "a/b/**")) == len(set(relative(tree, "a/b/**")))


def test_a_full_disk_for_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=r"bytes free there: '.*stdin'"), module.spooled(["-"]):
        pass


def test_a_pattern_and_a_link_in_circles(tree: Path) -> None:
    (tree / "a" / "b" / "up").symlink_to("..")
    with pytest.raises(ConfigError, match="points to a folder above"):
        find_paths([tree / "**" / "*.jsonl"])

"""Folders of token files that mean harm: nothing outside is read or removed, and memory follows what is there."""

from __future__ import annotations

import dataclasses
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import decode_token_file_index as decode_index
from tests.internals import encode_token_file_index as encode_index
from tests.internals import own_files

import penstock as ps
from penstock.errors import Corrupt, NotFound, PenstockError, TooLarge, UnsafeData
from penstock.store import LocalStore
from penstock.testing.token_files import write_token_files

FILES = [[[1, 2, 7], [7]], [[5, 0, 1, 7]]]


def changed(folder: Path, number: int, **values: Any) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["files"][number] |= values
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../out.pbin", "/etc/hostname", "part-00000-01234567.pbin/../../x.pbin", "..", ""])
def test_no_path_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    changed(folder, 0, path=name)
    with pytest.raises((UnsafeData, Corrupt)):
        ps.open(folder)
    with pytest.raises((UnsafeData, Corrupt)):
        own_files(LocalStore(), str(folder))
    assert [one.code for one in ps.verify(folder)] == ["token-files.index"]


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, format: str) -> None:
    folder = write_token_files(tmp_path / "out", FILES, format)
    index = decode_index((folder / "index.json").read_bytes(), "")
    name = index.files[1].path
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    source: Any = ps.open(folder)
    with pytest.raises(UnsafeData, match="follow_links"):
        source.tokens(0, source.num_tokens)
    assert any(one.code == "token-files.unsafe" for one in ps.verify(folder))
    followed: Any = ps.open(folder, follow_links=True)
    assert followed.tokens(0, followed.num_tokens).tolist() == [1, 2, 7, 7, 5, 0, 1, 7]
    assert followed.recipe()["follow_links"] is True


def test_an_index_that_is_a_link_out_or_no_file(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    (folder / "index.json").rename(tmp_path / "index.json")
    (folder / "index.json").symlink_to(tmp_path / "index.json")
    with pytest.raises(UnsafeData):
        ps.open(folder)
    (folder / "index.json").unlink()
    os.mkfifo(folder / "index.json")
    with pytest.raises(PenstockError):
        ps.open(folder, format="token-files")
    os.unlink(folder / "index.json")
    (folder / "index.json").mkdir()
    with pytest.raises(PenstockError):
        ps.open(folder)


@pytest.mark.parametrize("what", ["tokens", "documents"])
def test_counts_that_no_file_holds_take_no_memory(tmp_path: Path, what: str) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    files = list(decode_index((folder / "index.json").read_bytes(), "").files)
    digest = files[1].digest.rpartition(":")[0] + f":{(1 << 62) if what == 'documents' else files[1].documents}"
    files[1] = dataclasses.replace(files[1], digest=digest, **{what: 1 << 62})
    (folder / "index.json").write_bytes(encode_index("pbin", files))
    tracemalloc.start()
    try:
        source: Any = ps.open(folder)
        reads: dict[str, list[Any]] = {
            "tokens": [lambda: source.gather(np.array([0, 6]), 2), lambda: source.tokens(2, 6)],
            "documents": [lambda: source[len(source) - 1], lambda: source.get_batch([len(source) - 1])],
        }
        for read in [lambda: source.doc_starts, *reads[what]]:
            with pytest.raises(Corrupt, match=r"differs from the one listed in index\.json"):
                read()
        assert any(one.code == "token-files.counts" for one in ps.verify(folder, depth="full"))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 24


def test_an_index_without_end_is_not_read_whole(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    with open(folder / "index.json", "r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(TooLarge, match="the index is too long"):
        ps.open(folder, format="token-files")
    assert [one.code for one in ps.verify(folder, format="token-files")] == ["token-files.index"]


def test_only_token_files_are_ever_listed_for_removal(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES, "megatron")
    (folder / "notes.txt").write_text("mine")
    names = own_files(LocalStore(), str(folder))
    assert names[-2:] == [".penstock", "index.json"]
    assert "notes.txt" not in names
    assert sorted(names) == sorted(path.name for path in folder.iterdir() if path.name != "notes.txt")


def test_groups_are_listed_file_by_file(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES, "flat-tokens")
    group = next(folder.glob("part-00000-*.zarr"))
    (group / "mine.txt").write_text("mine")
    names = set(own_files(LocalStore(), str(folder)))
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there - names == {f"{group.name}/mine.txt"}


def test_a_file_that_goes_while_it_is_read(tmp_path: Path) -> None:
    folder = write_token_files(tmp_path / "out", FILES)
    source: Any = ps.open(folder, read="pread")
    assert source.tokens(0, 2).tolist() == [1, 2]
    for path in folder.glob("part-*"):
        path.unlink()
    with pytest.raises(NotFound):
        source.tokens(0, 8)

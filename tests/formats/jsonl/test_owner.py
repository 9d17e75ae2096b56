"""An index that is another file's is neither replaced nor removed: names made of a stem are shared."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.formats.jsonl import index
from penstock.prepare.jsonl_index import build_index
from penstock.testing.datasets import files_in


def lines(path: Path, count: int, **options: Any) -> Path:
    with ps.create(path, format="jsonl", **options) as writer:
        for number in range(count):
            writer.write({"n": number})
    return path


def tokens(path: Path, **options: Any) -> Path:
    with ps.create(path, token_bytes=2, eos_id=0, **options) as writer:
        writer.write({"tokens": np.array([1, 0], np.uint16)})
    return path


@pytest.mark.parametrize("overwritten", [True, False])
@pytest.mark.parametrize("owner", ["a.jsonl", "a.ndjson", "a.txt"])
@pytest.mark.parametrize("flavor", ["modalities", "energon"])
def test_an_output_of_the_same_stem(tmp_path: Path, owner: str, flavor: str, overwritten: bool) -> None:
    """`a.jsonl` and `a.idx` stand beside `a.pbin`, which was packed of them: lines take the place of `a.pbin`."""
    lines(tmp_path / owner, 5)
    if overwritten:
        tokens(tmp_path / "a.pbin", format="pbin")
    index = (tmp_path / "a.idx").read_bytes()
    before = files_in(tmp_path)
    if flavor == "modalities":
        with pytest.raises(ConfigError, match=rf"a\.idx: the index .*belongs to another file: found .*{owner}"):
            ps.convert(lines(tmp_path / "in" / "b.jsonl", 2), tmp_path / "a.pbin", to="jsonl", overwrite=True)
        assert {name: data for name, data in files_in(tmp_path).items() if not name.startswith("in/")} == before
    else:
        lines(tmp_path / "a.pbin", 2, flavor=flavor, overwrite=True)
        assert (tmp_path / "a.idx").read_bytes() == index
    assert len(ps.open(tmp_path / owner, format="jsonl")) == 5


def test_the_own_index_is_replaced(tmp_path: Path) -> None:
    """Others of the stem that are no lines, or to which it does not belong, are in nobody's way."""
    path = lines(tmp_path / "a.jsonl", 5)
    (tmp_path / "a.txt").write_bytes(b"a note\n")
    tokens(tmp_path / "a.pbin", format="pbin")
    assert len(ps.open(lines(path, 2, overwrite=True))) == 2
    with path.open("a") as file:  # grown: its index fits no more
        file.write('{"n": 7}\n')
    build_index(path, overwrite=True)
    assert len(ps.open(path)) == 3
    lines(path, 2, flavor="energon", overwrite=True)
    assert not (tmp_path / "a.idx").exists()


def test_a_file_that_grew_and_is_named_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old index fits no more, and is its own all the same, however the file is named."""
    monkeypatch.chdir(tmp_path)
    path = lines(tmp_path / "a.jsonl", 5)
    os.symlink("a.jsonl", "b.jsonl")
    for given, count in (("a.jsonl", 6), ("./a.jsonl", 7), ("../" + tmp_path.name + "/a.jsonl", 8)):
        with path.open("a") as file:
            file.write("{}\n")
        assert build_index(given, overwrite=True).num_lines == count
    lines(tmp_path / "c.ndjson", 2)
    Path("c.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="the index at this path belongs to another file"):
        build_index("c.jsonl", overwrite=True)


def test_index_of_another_file_of_the_stem(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 5)
    (tmp_path / "a.txt").write_text(json.dumps({"n": 1}) + "\n")
    with pytest.raises(ConfigError, match=r"the index at this path belongs to another file: found .*a\.jsonl"):
        build_index(tmp_path / "a.txt", overwrite=True)
    assert build_index(tmp_path / "a.txt", tmp_path / "a.idx", overwrite=True).num_lines == 1  # named by its user


def test_an_index_that_can_not_be_read_is_nobodys_to_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text('{"n": 1}\n')
    build_index(tmp_path / "a.log")
    (tmp_path / "a.out").write_text(json.dumps({"n": 1}) + "\n")
    before = files_in(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a.idx")

    monkeypatch.setattr(index, "decode_index", refuse)
    with pytest.raises(OSError, match=r"a\.idx"):
        build_index(tmp_path / "a.out", overwrite=True)
    assert files_in(tmp_path) == before


def test_energon_of_a_name_without_suffix(tmp_path: Path) -> None:
    """Energon's index of `a` is called as that of Modalities for `a.jsonl`, and as that of a pair of Megatron's."""
    lines(tmp_path / "a.jsonl", 5)
    with pytest.raises(ConfigError, match=r"a\.idx: the path of the index is taken by something else"):
        lines(tmp_path / "a", 2, flavor="energon", overwrite=True)
    assert len(ps.open(tmp_path / "a.jsonl")) == 5
    (tmp_path / "a").write_text('{"n": 1}\n')
    with pytest.raises(ConfigError, match="taken by something else"):
        build_index(tmp_path / "a", flavor="energon", overwrite=True)


@pytest.mark.parametrize("flavor", ["modalities", "energon"])
def test_an_index_goes_in_no_folder(tmp_path: Path, flavor: str) -> None:
    path = lines(tmp_path / "a.jsonl", 1)
    (tmp_path / "folder").mkdir()
    for overwrite in (True, False):
        with pytest.raises(ConfigError, match="folder: the output is a folder"):
            build_index(path, tmp_path / "folder", flavor=flavor, overwrite=overwrite)


def test_lines_beside_a_pair_of_megatron_have_no_index(tmp_path: Path) -> None:
    """Packed beside its lines, `a.bin` has an `a.idx`, which is neither read for theirs nor mended into it."""
    path = lines(tmp_path / "a.jsonl", 5)
    (tmp_path / "a.idx").unlink()
    tokens(tmp_path / "a.bin", format="megatron")
    before = files_in(tmp_path)
    assert [one["n"] for one in ps.open(path)] == list(range(5))
    assert [one.code for one in ps.verify(path)] == ["jsonl.no-index"]
    assert ps.repair(path, write=True) == []
    assert files_in(tmp_path) == before

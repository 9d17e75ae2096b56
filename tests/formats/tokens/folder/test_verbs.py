"""Every verb that reads takes a folder of token files, and none writes into one."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.internals import main

import penstock as ps
from penstock.testing.datasets import files_in
from penstock.testing.token_files import write_token_files

EOS = 7
FILES = [[[30, 2, EOS], [EOS]], [], [[5, 0, 1, 4, EOS]], [[1, EOS], [2, 3, EOS]]]
DOCUMENTS = [document for file in FILES for document in file]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_token_files(tmp_path / "out", FILES, options={"eos_id": EOS})


def documents(path: Path) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in ps.open(path)]


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", ["new.pbin", "new.zarr", "new.idx"])
def test_convert(folder: Path, tmp_path: Path, name: str) -> None:
    assert run("convert", folder, tmp_path / name) == 0
    assert documents(tmp_path / name) == DOCUMENTS


def test_verbs_on_documents(folder: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.pbin"
    assert run("convert", folder, one, "--token-bytes", 2) == 0
    for words in (
        ("merge", folder, folder),
        ("shuffle", folder, "--seed", 3),
        ("filter", folder, "--min-tokens", 2),
        ("split", folder, "--parts", 2, "--only", 1),
    ):
        made, same = tmp_path / f"{words[0]}.pbin", tmp_path / f"{words[0]}-one.pbin"
        assert run(*words, "-o", made) == 0
        assert run(*(one if word is folder else word for word in words), "-o", same) == 0
        assert made.read_bytes() == same.read_bytes()
    assert run("split", folder, "-o", tmp_path / "parts", "--ratio", "3,2", "--to", "pbin") == 0
    parts = [documents(path) for path in sorted((tmp_path / "parts").glob("*.pbin"))]
    assert sorted(chain(*parts)) == sorted(DOCUMENTS)


@pytest.mark.parametrize("words", [("shuffle", "--seed", 3), ("split", "--ratio", "1,1"), ("merge",)])
def test_an_output_whose_format_nobody_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[Any, ...]
) -> None:
    verb, *options = words
    assert run(verb, folder, "-o", tmp_path / "made", *options) == 7
    told = capsys.readouterr().err
    assert f"{verb} writes one file, not token-files like its source. Set a format" in told
    assert not (tmp_path / "made").exists()


def test_verbs_that_show(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["samples"], found["tokens"], found["max_token_id"]) == ("token-files", 5, 14, 30)
    assert found["details"] == {"files": 4, "format of the files": "pbin"}
    assert run("head", folder) == 0
    assert "[30, 2, 7]" in capsys.readouterr().out
    assert run("head", folder, "--pictures") == 0
    assert run("verify", folder, "--depth", "full") == 0
    assert run("verify", folder, "--depth", "decode") == 0
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"kind: chunk\nlength: 3\nsource: {{kind: open, path: {folder}}}\n")
    assert run("plan", recipe) == 0
    capsys.readouterr()
    assert run("explain", recipe, "--step", 1, "--global-batch", 1, "--json") == 0
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert [Path(path).name[:10] for path, _, _ in sample["extents"]] == ["part-00000", "part-00002"]


def test_nothing_writes_into_it(folder: Path, tmp_path: Path) -> None:
    before = files_in(folder)
    other = tmp_path / "other.pbin"
    assert run("convert", folder, other) == 0
    for words in (
        ("convert", folder, folder / "x.pbin"),
        ("merge", folder, "-o", folder / "part-00000-01234567.pbin"),
        ("shuffle", folder, "-o", folder, "--overwrite"),
        ("convert", other, folder, "--to", "token-files"),
        ("convert", other, folder, "--to", "flat-tokens", "--overwrite"),
        ("convert", other, folder, "--to", "mds", "--overwrite"),
        ("repair", folder, "--write"),
    ):
        assert (run(*words) != 0) == (words[0] != "repair"), words
        assert files_in(folder) == before, words


def test_unfinished_work_is_no_input(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "index.json").unlink()
    made = tmp_path / "x.pbin"
    for words in (("info", folder), ("convert", folder, made), ("merge", folder, "-o", made)):
        assert run(*words) == 14
        assert "penstock status" in capsys.readouterr().err
    assert not made.exists()


def test_a_mix_of_folders_and_files(folder: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.pbin"
    assert run("convert", folder, one, "--token-bytes", 2) == 0
    opened: list[Any] = [ps.open(folder), ps.open(one)]
    source = ps.Concat(opened)
    assert (len(source), source.num_tokens, source.eos_id) == (10, 28, EOS)
    assert source.tokens(12, 17).tolist() == [3, EOS, 30, 2, EOS]
    assert len(list(ps.Loader(ps.Chunk(7)(source), global_batch=2, tail="pad"))) == 2

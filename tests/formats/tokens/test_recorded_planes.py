"""Planes and exclude lists that a side file records: data copied without them is an error, not other data."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.called import called
from tests.internals import place_of

import penstock as ps
from penstock.errors import ConfigError, Corrupt
from penstock.types import OpenOptions

opened: Any = ps.open
opened_recipe: Any = ps.open_recipe

DATA = {"pbin": "a.pbin", "megatron": "a.idx", "flat-tokens": "a.zarr", "token-files": "a"}
SIDE = {"pbin": "a.pbin.penstock", "megatron": "a.idx.penstock", "flat-tokens": "a.zarr.penstock"}
DOCUMENTS = [([1, 2, 3], [0, 1, 1]), ([4, 5], [0, 1]), ([6, 7, 8, 9], [1, 0, 0, 1])]
MASK = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], bool)


def make(folder: Path, format: str) -> str:
    """Write three documents with a loss mask; return the path that opens them."""
    if format == "token-files":
        with ps.create(str(folder / "one.pbin"), format="pbin", token_bytes=2, planes={"loss_mask": "bool"}) as writer:
            for tokens, mask in DOCUMENTS:
                writer.write({"tokens": tokens, "loss_mask": mask})
        ps.convert(str(folder / "one.pbin"), str(folder / "a"), to="pbin", file_tokens=5)
        for one in folder.glob("one.pbin*"):
            one.unlink()
        return str(folder / "a")
    path = str(folder / ("a" if format == "megatron" else DATA[format]))
    with ps.create(path, format=format, token_bytes=2, planes={"loss_mask": "bool"}) as writer:
        for tokens, mask in DOCUMENTS:
            writer.write({"tokens": tokens, "loss_mask": mask})
    return path


def copy_without(folder: Path, target: Path, word: str) -> None:
    """Copy all files of a folder but those that have `word` in their names."""
    shutil.copytree(folder, target, ignore=lambda _, names: [name for name in names if word in name])


@pytest.mark.parametrize("format", DATA)
def test_a_copy_without_its_planes_is_an_error(tmp_path: Path, format: str) -> None:
    path = make(tmp_path / "here", format) if (tmp_path / "here").mkdir() is None else ""
    source = opened(path)
    np.testing.assert_array_equal(source.planes["loss_mask"].read(0, 9), MASK)
    copy_without(tmp_path / "here", tmp_path / "copy", ".plane")
    copy = str(tmp_path / "copy" / Path(path).name)
    with pytest.raises(Corrupt, match="loss_mask is recorded in the side file but missing"):
        opened(copy)
    with pytest.raises(Corrupt, match="loss_mask"):
        opened_recipe({"kind": "open", "path": copy})
    with pytest.raises(Corrupt, match="loss_mask"):
        ps.convert(copy, str(tmp_path / "out.pbin"))
    bare = opened(copy, planes=None)
    assert bare.tokens(0, 9).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert opened_recipe(bare.recipe()).tokens(0, 9).tolist() == bare.tokens(0, 9).tolist()
    assert bare.fingerprint == opened(path, planes=None).fingerprint
    assert called("verify", copy).returncode == 1
    assert "loss_mask" in called("verify", copy).stdout
    assert called("verify", copy, "--planes", "none").returncode == 0
    for verb in (["head", copy], ["info", copy], ["convert", copy, str(tmp_path / "b.pbin")]):
        assert called(*verb).returncode == 6
        assert called(*verb, "--planes", "none").returncode == 0, verb


def test_other_planes_than_the_recorded_ones_are_an_error(tmp_path: Path) -> None:
    path = make(tmp_path, "pbin")
    with ps.create(str(tmp_path / "b.pbin"), format="pbin", token_bytes=2, planes={"loss_mask": "bool"}) as writer:
        for tokens, _ in DOCUMENTS:
            writer.write({"tokens": tokens, "loss_mask": [1] * len(tokens)})
    for one in tmp_path.glob("b.pbin.plane*"):
        shutil.copy(one, tmp_path / one.name.replace("b.pbin", "a.pbin"))
    with pytest.raises(Corrupt, match="differs from the one recorded in the side file"):
        opened(path)


def test_a_side_file_without_the_key_says_nothing(tmp_path: Path) -> None:
    """Version 0.2 wrote none: planes count as they are found, but data packed from chats has a loss mask."""
    path = make(tmp_path, "pbin")
    side = tmp_path / SIDE["pbin"]
    content = json.loads(side.read_text())
    assert len(content.pop("planes")["loss_mask"]) == 32
    del content["check"]
    side.write_text(json.dumps(content))
    assert list(opened(path).planes) == ["loss_mask"]
    os.unlink(path + ".planes")
    assert not hasattr(opened(path), "planes")
    side.write_text(json.dumps(content | {"options": {"chat": "0" * 32}}))
    with pytest.raises(Corrupt, match="loss_mask is recorded in the side file but missing"):
        opened(path)
    assert opened(path, planes=None).num_tokens == 9


def test_one_file_of_a_folder_with_planes_is_an_error(tmp_path: Path) -> None:
    path = make(tmp_path, "token-files")
    part = sorted(Path(path).glob("part-*.pbin"))[0]
    with pytest.raises(ConfigError, match="one file of a dataset with planes"):
        opened(str(part))
    assert opened(str(part), planes=None).num_tokens


def test_several_files_without_their_planes_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    make(folder, "pbin")
    copy_without(folder, tmp_path / "copy", ".plane")
    with pytest.raises(Corrupt, match="planes of a token file are missing"):
        _ = opened(str(tmp_path / "copy")).num_tokens
    assert opened(str(tmp_path / "copy"), planes=None).num_tokens == 9


def test_a_new_side_file_records_planes_again(tmp_path: Path) -> None:
    path = make(tmp_path, "pbin")
    assert called("verify", path, "--replace-manifest").returncode == 0
    assert json.loads((tmp_path / SIDE["pbin"]).read_text())["planes"].keys() == {"loss_mask"}
    for one in tmp_path.glob("a.pbin.plane*"):
        one.unlink()
    assert called("verify", path, "--replace-manifest").returncode == 1
    assert called("verify", path, "--replace-manifest", "--planes", "none").returncode == 0
    assert opened(path).num_tokens == 9


# --- exclude lists ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens", "mds", "jsonl"])
def test_a_copy_without_its_exclude_list_is_an_error(tmp_path: Path, format: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    name = {"megatron": "a", "mds": "a", "jsonl": "a.jsonl"}.get(format) or DATA[format]
    path = str(here / name)
    options: dict[str, Any] = {"mds": {"columns": {"text": "str"}}, "jsonl": {}}.get(format, {"token_bytes": 2})
    with ps.create(path, format=format, **options) as writer:
        for tokens, _ in DOCUMENTS:
            writer.write({"tokens": tokens} if "token_bytes" in options else {"text": str(tokens)})
    before = {one.name: one.read_bytes() for one in here.rglob("*penstock") if one.is_file()}
    assert called("exclude", path, "--indices", _indices(tmp_path, 1), "--reason", "r").returncode == 0
    fingerprint = opened(path).fingerprint
    copy_without(here, tmp_path / "copy", ".exclude.jsonl")
    copy = str(tmp_path / "copy" / name)
    with pytest.raises(Corrupt, match="exclude list recorded in the side file is missing"):
        opened(copy)
    assert called("verify", copy).returncode == 1
    assert called("head", copy).returncode == 6
    assert called("head", copy, "--excludes", "none").returncode == 0
    whole = opened(copy, excludes=False)
    assert len(whole) == 3
    assert whole[1] is not None
    assert whole.fingerprint == fingerprint
    assert len(opened_recipe(whole.recipe())) == 3
    assert called("exclude", path, "--undo").returncode == 0
    assert {one.name: one.read_bytes() for one in here.rglob("*penstock") if one.is_file()} == before
    assert len(opened(path)) == 3


def _indices(folder: Path, *indices: int) -> str:
    path = folder / "indices.txt"
    path.write_text("".join(f"{one}\n" for one in indices))
    return str(path)


def test_packing_lines_without_their_exclude_list_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "a.jsonl")
    with ps.create(path, format="jsonl") as writer:
        writer.write({"text": "a"})
        writer.write({"text": "b"})
    assert called("exclude", path, "--indices", _indices(tmp_path, 1), "--reason", "r").returncode == 0
    os.unlink(f"{path}.penstock.exclude.jsonl")
    from tests.internals import InputFile, without_excluded

    one = InputFile.__new__(InputFile)
    object.__setattr__(one, "place", place_of(path))
    with pytest.raises(Corrupt, match="exclude list recorded in the side file"):
        without_excluded([one])
    assert without_excluded([one], False) == [one]
    assert OpenOptions(planes="none").planes is None

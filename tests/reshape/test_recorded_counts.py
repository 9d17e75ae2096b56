"""Samples that a side file counts and that are missing aren't left out of a copy: no verb goes on without them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import chunk, purge

import penstock as ps
from penstock import split
from penstock.errors import Corrupt

SAMPLES = 30
SHARDS = ("mds", "csv", "tsv", "json-shards")
FORMATS = (*SHARDS, "jsonl", "jsonl-energon", "jsonl-files", "webdataset", "folder")
REFUSED = "the data to copy differs from its side file"


def make(folder: Path, format: str, count: int = SAMPLES, *, in_one: bool = False) -> Path:
    """Write a dataset of samples with a side file; `in_one` shard, or several."""
    text = [{"text": f"sample {number}"} for number in range(count)]
    if format in SHARDS:
        path, options = (
            folder / "data",
            {"columns": {"text": "str"}, "size_limit": 1 << 20 if in_one else 250 if format == "mds" else 90},
        )
        samples: list[dict[str, Any]] = text
    elif format.startswith("jsonl"):
        path, options, samples = folder / "data.jsonl", {}, text
        if format == "jsonl-files":
            path = folder / "data" / "b.jsonl"
            path.parent.mkdir()
            (path.parent / "a.jsonl").write_text('{"text": "without a side file"}\n')
    else:
        path, options = folder / "data", {"maxcount": count if in_one else 6} if format == "webdataset" else {}
        samples = [{"__key__": f"{n:03}", "txt": b"t%d" % n, "cls": b"%d" % n} for n in range(count)]
    with ps.create(path, format="jsonl" if format.startswith("jsonl") else format, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return path.parent if format == "jsonl-files" else path


def damage(path: Path, format: str) -> None:
    """Take samples away, and leave the side file."""
    if format in SHARDS:
        index = json.loads((path / "index.json").read_bytes())
        assert len(index["shards"]) > 2
        index["shards"] = index["shards"][:-2]
        (path / "index.json").write_text(json.dumps(index))
    elif format.startswith("jsonl"):
        file = path / "b.jsonl" if format == "jsonl-files" else path
        assert Path(f"{file}.penstock").exists()
        for one in file.parent.glob(f"{file.stem}*.idx*"):
            one.unlink()
        file.write_text("".join(json.dumps({"text": f"other {number}"}) + "\n" for number in range(20)))
    elif format == "webdataset":
        info = json.loads((path / ".nv-meta/.info.json").read_bytes())
        info["shard_counts"] = dict(list(info["shard_counts"].items())[:3])
        (path / ".nv-meta/.info.json").write_text(json.dumps(info))
        splits = (path / ".nv-meta/split.yaml").read_text()
        (path / ".nv-meta/split.yaml").write_text(splits.replace("000000..000004", "000000..000002"))
        for name in ("index.sqlite", "index.uuid", "index.keys"):
            (path / ".nv-meta" / name).unlink(missing_ok=True)
    else:
        for part in ("txt", "cls"):
            os.unlink(path / f"007.{part}")


def convert_to_other(source: Path, out: Path, format: str) -> object:
    options: dict[str, Any] = {"format": "folder"} if format == "folder" else {}
    if format == "jsonl-energon":
        options = {"flavor": "energon"}
    return ps.convert(source, out, to="webdataset" if format in SHARDS else "mds", **options)


Verb = Callable[[Path, Path, str], object]
VERBS: dict[str, Verb] = {
    "convert": convert_to_other,
    "merge": lambda source, out, format: ps.merge([source], out),
    "split": lambda source, out, format: split(source, out, ratio=(1, 1)),
    "shuffle": lambda source, out, format: ps.shuffle(source, out, seed=1),
    "filter": lambda source, out, format: ps.filter(source, out, where="text != ''"),
    "chunk": lambda source, out, format: chunk(source, out, chunk_id=0, num_chunks=1),
}
WITHOUT = {
    "webdataset": {"filter", "chunk"},  # which take rows alone
    "folder": set(VERBS) - {"convert"},
    "jsonl-energon": set(VERBS) - {"convert"},
}
CASES = [(format, verb) for format in FORMATS for verb in VERBS if verb not in WITHOUT.get(format, ())]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {format: make(tmp_path_factory.mktemp(format), format) for format in FORMATS}


@pytest.mark.parametrize(("format", "verb"), CASES)
def test_missing_samples_are_not_left_out_of_a_copy(
    datasets: dict[str, Path], tmp_path: Path, format: str, verb: str
) -> None:
    """Whole data is copied; what its side file contradicts isn't; without a side file it's copied again."""
    source = tmp_path / "in" / datasets[format].name
    source.parent.mkdir()
    for one in datasets[format].parent.iterdir():
        (shutil.copytree if one.is_dir() else shutil.copy2)(one, source.parent / one.name)
    suffix = ".jsonl" if format == "jsonl" and verb not in ("convert", "split") else ""
    out = [tmp_path / f"out-{number}{suffix}" for number in range(3)]
    VERBS[verb](source, out[0], format)
    damage(source, format)
    with pytest.raises(Corrupt, match=REFUSED) as refused:
        VERBS[verb](source, out[1], format)
    assert "Restore the data" in str(refused.value)
    assert "verify --replace-manifest" in str(refused.value)
    assert not out[1].exists()
    for side in (*source.parent.glob("*.penstock"), *source.glob("*.penstock")):
        side.unlink()
    VERBS[verb](source, out[2], format)


def test_purge_refuses_too(datasets: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "data"
    shutil.copytree(datasets["mds"], source)
    ps.exclude(source, indices=[3], reason="a test")
    damage(source, "mds")
    with pytest.raises(Corrupt):
        purge(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_columns_of_ids_are_refused_too(tmp_path: Path) -> None:
    source = tmp_path / "data"
    with ps.create(source, format="mds", columns={"ids": "ndarray:int32"}, size_limit=150) as writer:
        for number in range(SAMPLES):
            writer.write({"ids": np.array([number, 1], "int32")})
    ps.convert(source, tmp_path / "whole.pbin", tokens_column="ids")
    damage(source, "mds")
    with pytest.raises(Corrupt, match=REFUSED):
        ps.convert(source, tmp_path / "out.pbin", tokens_column="ids")


def test_a_folder_of_which_only_one_split_is_here_is_copied(tmp_path: Path) -> None:
    """Shards of another split, the last one among them, were never fetched."""
    source = tmp_path / "data"
    with ps.create(source, format="webdataset", maxcount=5) as writer:
        for split_name in ("train", "val"):
            writer.begin_split(split_name)  # type: ignore[attr-defined]
            for number in range(10):
                writer.write({"__key__": f"{split_name}{number}", "txt": b"t"})
    for file in sorted(source.rglob("*.tar"))[-2:]:
        file.unlink()
    ps.convert(source, tmp_path / "out", to="mds", split="train")
    assert len(ps.open(tmp_path / "out")) == 10


def test_the_command_line_says_what_to_do(
    datasets: dict[str, Path], tmp_path: Path, cli: Callable[..., tuple[int, str]]
) -> None:
    source = tmp_path / "data"
    shutil.copytree(datasets["mds"], source)
    damage(source, "mds")
    command = ("convert", source, tmp_path / "out", "--to", "webdataset")
    status, text = cli(*command)
    assert status == 6
    assert REFUSED in text
    assert "expected 30 samples" in text
    assert "verify --replace-manifest" in text
    assert cli("verify", source, "--replace-manifest")[0] == 0
    assert cli(*command)[0] == 0

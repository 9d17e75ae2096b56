"""A `train` that can't be read is an error, never a reason to read another split: all formats with splits."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.called import called
from tests.internals import place_of, put
from tests.store.objects import counted_requests

import penstock as ps
from penstock.errors import NotFound
from penstock.testing import FileServer

ROWS = {"train": [1, 2, 3], "val": [7]}


def _shards(root: Path, kind: str) -> Path:
    for name, rows in ROWS.items():
        with ps.create(root / name, format=kind, columns={"n": "int"}) as writer:
            for row in rows:
                writer.write({"n": row})
    return root / "train/index.json"


def _flat_tokens(root: Path) -> Path:
    for split, rows in (("train", ROWS["train"]), ("validation", ROWS["val"])):
        with ps.create(root, format="flat-tokens", split=split) as writer:
            for row in rows:
                writer.write({"tokens": [row]})
    return root / "train/.zgroup"


def _saved(root: Path) -> Path:
    for name, rows in ROWS.items():
        (root / name).mkdir(parents=True)
        table = pa.table({"n": rows})
        with pa.ipc.new_stream(root / name / "data-00000-of-00001.arrow", table.schema) as file:
            file.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (root / name / "state.json").write_text(json.dumps(state))
        features = {"features": {"n": {"dtype": "int64", "_type": "Value"}}}
        (root / name / "dataset_info.json").write_text(json.dumps(features))
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(ROWS)}))
    return root / "train/state.json"


WRITERS: dict[str, Callable[[Path], Path]] = {
    **{kind: functools.partial(_shards, kind=kind) for kind in ("mds", "csv", "json-shards")},
    "flat-tokens": _flat_tokens,
    "hf": _saved,
}
"""Format → how to write a dataset with the splits of `ROWS`; returns the file by which `train` is a split."""

EMPTIED = (False, True)


def _values(source: Any) -> list[int]:
    return [int(row["n"] if "n" in row else row["tokens"][0]) for row in map(source.__getitem__, range(len(source)))]


def _break(root: Path, required: Path, *, emptied: bool) -> None:
    for file in (root / "train").rglob("*") if emptied else (required,):
        if file.is_file():
            file.unlink()


@pytest.mark.parametrize("emptied", EMPTIED, ids=["unfinished", "empty"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_train_that_is_not_readable_is_an_error(kind: str, emptied: bool, tmp_path: Path) -> None:
    root = tmp_path / "x"
    required = WRITERS[kind](root)
    assert _values(ps.open(root)) == ROWS["train"]
    _break(root, required, emptied=emptied)
    with pytest.raises(NotFound, match="train") as error:
        ps.open(root)
    other = "validation" if kind == "flat-tokens" else "val"
    if kind != "hf":
        assert (error.value.path, required.name in str(error.value.what)) == (str(root / "train"), True)
        assert f"--split (split=): {other}" in str(error.value.hint)
    for verb in (("info", root), ("convert", root, tmp_path / "out.jsonl", "--to", "jsonl")):
        done = called(*verb)
        assert done.returncode == NotFound.exit_status, done.stdout + done.stderr
        assert f"{root}/train" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
    for depth in ("quick", "decode"):
        done = called("verify", root, "--depth", depth)
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"{root}/train" in done.stdout
    assert _values(ps.open(root, split=other)) == ROWS["val"]


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "hf"])  # hf lists its splits in a file
def test_without_train_the_only_split_is_read(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "x"
    WRITERS[kind](root)
    (root / "train").rename(tmp_path / "elsewhere")
    assert _values(ps.open(root)) == ROWS["val"]


@pytest.mark.parametrize("kind", ["mds", "flat-tokens"])
def test_objects_under_train(kind: str, tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    required = WRITERS[kind](tmp_path / "x")
    requests = counted_requests(monkeypatch)
    lists: list[int] = []
    for name, without in (("whole", ()), ("broken", (required,)), ("val", (tmp_path / "x/train").rglob("*"))):
        url = place_of(f"s3://bucket/default-split/{tmp_path.name}/{name}")
        left_out = set(without)
        for file in (tmp_path / "x").rglob("*"):
            if file.is_file() and file not in left_out:
                put(url.store, url.child(str(file.relative_to(tmp_path / "x"))).path, file.read_bytes())
        requests.clear()
        if name == "broken":
            with pytest.raises(NotFound, match="the split train has no"):
                ps.open(url.path)
        else:
            assert _values(ps.open(url.path)) == ROWS["train" if name == "whole" else "val"]
        lists.append(requests.count("list"))
    assert lists[2] - lists[0] <= 1


def test_a_web_server_has_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "x"
    _flat_tokens(root)
    files = {
        str(file.relative_to(tmp_path)): file.read_bytes()
        for file in (root / "validation").rglob("*")
        if file.is_file()
    }
    with FileServer(files) as server:
        source = ps.open(f"{server.url}/x", format="flat-tokens")
        assert _values(source) == ROWS["val"]


def test_repair_rebuilds_the_index_of_train(tmp_path: Path) -> None:
    required = _shards(tmp_path / "x", "mds")
    required.unlink()
    assert called("repair", tmp_path / "x", "--write").returncode == 0
    assert _values(ps.open(tmp_path / "x")) == ROWS["train"]


LOST = {
    "another one next to train": ("val", ["train"], False),
    "the only readable one is not read for it": ("test", ["val"], True),
    "validation": ("validation", ["test"], True),
    "two others": ("eval", ["dev", "test"], True),
}


@pytest.mark.parametrize("kind", ["mds", "csv", "json-shards"])
@pytest.mark.parametrize("emptied", EMPTIED, ids=["unfinished", "empty"])
@pytest.mark.parametrize("case", LOST)
def test_every_split_without_an_index_is_named(kind: str, emptied: bool, case: str, tmp_path: Path) -> None:
    """`verify` names it, and no other split is read in its place."""
    lost, others, is_error = LOST[case]
    for number, name in enumerate([lost, *others]):
        with ps.create(tmp_path / "x" / name, format=kind, columns={"n": "int"}) as writer:
            writer.write({"n": number})
    for file in (tmp_path / "x" / lost).iterdir():
        if emptied or file.name == "index.json":
            file.unlink()
    if is_error:
        with pytest.raises(NotFound, match=f"the split {lost} has no index.json") as error:
            ps.open(tmp_path / "x")
        assert str(error.value.hint).endswith(", ".join(others))
    else:
        assert _values(ps.open(tmp_path / "x")) == [1]
    with pytest.raises(NotFound, match=lost):
        ps.open(tmp_path / "x", split=lost)
    done = called("verify", tmp_path / "x")
    assert (done.returncode, f"{tmp_path}/x/{lost}" in done.stdout) == (1, True)
    assert _values(ps.open(tmp_path / "x", split=others[0])) == [1]


def test_folders_that_only_begin_like_a_split_are_not_splits(tmp_path: Path) -> None:
    """A folder of pictures, of logs, or next to an index that is the dataset's own."""
    with ps.create(tmp_path / "x/val", format="mds", columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    for name in ("test_pictures/a.png", "evaluation/log.txt", "other/a.txt"):
        (tmp_path / "x" / name).parent.mkdir()
        (tmp_path / "x" / name).write_bytes(b"x")
    assert _values(ps.open(tmp_path / "x")) == [7]
    assert called("verify", tmp_path / "x").returncode == 0
    (tmp_path / "x/val/train").mkdir()
    assert _values(ps.open(tmp_path / "x/val")) == [7]
    assert called("verify", tmp_path / "x/val").returncode == 0


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_train_is_a_plain_folder_in_formats_without_splits(kind: str, tmp_path: Path) -> None:
    for number, name in enumerate(["train", "val"]):
        (tmp_path / "x" / name).mkdir(parents=True)
        if kind == "jsonl":
            (tmp_path / f"x/{name}/a.jsonl").write_text(json.dumps({"n": number}) + "\n")
        else:
            pq.write_table(pa.table({"n": [number]}), tmp_path / f"x/{name}/a.parquet")
    (tmp_path / "x/train/empty").mkdir()
    assert _values(ps.open(tmp_path / "x")) == [0, 1]


def test_objects_of_a_split_without_an_index(tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    url = place_of(f"s3://bucket/lost-split/{tmp_path.name}")
    for name in ("val", "test"):
        with ps.create(tmp_path / name, format="mds", columns={"n": "int"}) as writer:
            writer.write({"n": 7})
        for file in (tmp_path / name).iterdir():
            if name == "val" or file.name != "index.json":
                put(url.store, url.child(f"{name}/{file.name}").path, file.read_bytes())
    with pytest.raises(NotFound, match=r"the split test has no index\.json"):
        ps.open(url.path)
    assert _values(ps.open(url.path, split="val")) == [7]

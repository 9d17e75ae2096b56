"""The original's writers: their arguments, over one `create`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat.streaming import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
    clean_stale_shared_memory,
    merge_index,
)
from penstock.errors import ConfigError

COLUMNS = {"id": "int", "text": "str"}
SAMPLES = [{"id": number, "text": f"text {number}"} for number in range(50)]


@pytest.mark.parametrize(
    ("writer", "more", "kind"),
    [
        (MDSWriter, {"size_limit": 300, "compression": "zstd:3", "hashes": ["sha1", "xxh64"]}, "mds"),
        (CSVWriter, {"size_limit": "1kb"}, "csv"),
        (TSVWriter, {"newline": "\r\n"}, "tsv"),
        (XSVWriter, {"separator": "|", "size_limit": None}, "xsv"),
        (JSONWriter, {"hashes": None}, "json"),
    ],
)
def test_what_is_written_is_read(writer: Any, more: dict[str, Any], kind: str, tmp_path: Path) -> None:
    options = {"progress_bar": True, "max_workers": 3, "retry": 1}
    with writer(columns=COLUMNS, out=str(tmp_path / "a"), **more, **options) as out:
        for sample in SAMPLES:
            out.write(sample)
    assert list(StreamingDataset(local=str(tmp_path / "a"))[:]) == SAMPLES
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert {shard["format"] for shard in index["shards"]} == {kind}
    assert index["shards"][0]["compression"] == more.get("compression")
    assert index["shards"][0]["hashes"] == (more.get("hashes") or [])


def write(writer: Any, count: int = 5) -> None:
    for sample in SAMPLES[:count]:
        writer.write(sample)


def write_and_fail(writer: Any) -> None:
    write(writer)
    raise KeyError


def test_finish_makes_it_visible(tmp_path: Path) -> None:
    out = MDSWriter(columns=COLUMNS, out=str(tmp_path / "a"))
    write(out)
    assert not (tmp_path / "a" / "index.json").exists()
    out.finish()
    assert len(ps.open(tmp_path / "a")) == 5
    with pytest.raises(ConfigError):
        out.write(SAMPLES[0])


def test_an_exception_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), MDSWriter(columns=COLUMNS, out=str(tmp_path / "a")) as out:
        write_and_fail(out)
    assert not (tmp_path / "a").exists()


def test_folders_that_are_there(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.mkdir()
    with MDSWriter(columns=COLUMNS, out=str(target)) as out:
        write(out)
    (target / "foreign.txt").write_text("old")
    with pytest.raises(FileExistsError):
        MDSWriter(columns=COLUMNS, out=str(target))
    with pytest.raises(ConfigError, match=r"foreign\.txt"):
        MDSWriter(columns=COLUMNS, out=str(target), exist_ok=True)
    assert len(ps.open(target)) == 5
    assert (target / "foreign.txt").read_text() == "old"
    (target / "foreign.txt").unlink()
    with MDSWriter(columns=COLUMNS, out=str(target), exist_ok=True) as out:
        write(out, 7)
    assert len(ps.open(target)) == 7


@pytest.mark.parametrize("keep", [False, True])
def test_a_local_and_a_remote_folder(keep: bool, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    with MDSWriter(columns=COLUMNS, out=(str(local), f"file://{remote}"), keep_local=keep, size_limit=60) as out:
        write(out, 20)
    assert list(StreamingDataset(local=str(remote))[:]) == SAMPLES[:20]
    assert local.exists() == keep
    if keep:
        names = sorted(file.name for file in local.iterdir())
        assert names == sorted(file.name for file in remote.iterdir())
        assert all((local / name).read_bytes() == (remote / name).read_bytes() for name in names)


def test_both_folders_are_where_the_writer_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    with MDSWriter(columns=COLUMNS, out=("local", "remote"), keep_local=True) as out:
        monkeypatch.chdir(elsewhere)
        write(out)
    assert len(ps.open(here / "local")) == len(ps.open(here / "remote")) > 0
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_folder_of_two(empty: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").touch()
    out = [str(tmp_path / "local"), str(tmp_path / "remote")]
    out[empty] = ""
    with pytest.raises(ConfigError, match="is empty"):
        MDSWriter(columns={"n": "int"}, out=(out[0], out[1]), keep_local=True, exist_ok=True)
    assert [one.name for one in tmp_path.iterdir()] == ["own.txt"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_remote_dataset_is_replaced_only_when_asked(keep: bool, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    with MDSWriter(columns=COLUMNS, out=remote) as out:
        write(out)
    with pytest.raises(ConfigError, match="exists"):
        MDSWriter(columns=COLUMNS, out=(local, remote), keep_local=keep)
    with MDSWriter(columns=COLUMNS, out=(local, remote), keep_local=keep, exist_ok=True) as out:
        write(out, 7)
    assert len(ps.open(remote)) == 7


@pytest.mark.parametrize("more", [{"color": 1}, {"columns": {"a": "nothing"}}, {"compression": "zip"}])
def test_arguments_that_cannot_be(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        MDSWriter(**{"columns": COLUMNS, "out": str(tmp_path / "a"), **more})
    assert not (tmp_path / "a").exists()


def test_merge_index(tmp_path: Path) -> None:
    for part in (0, 1, 2, 10):
        with MDSWriter(columns=COLUMNS, out=str(tmp_path / "a" / str(part))) as out:
            out.write({"id": part, "text": ""})
    root = tmp_path / "a"
    merge_index(str(root))
    assert [sample["id"] for sample in StreamingDataset(local=str(root))[:]] == [0, 1, 2, 10]
    (root / "index.json").unlink()
    parts = [str(root / "10" / "index.json"), (str(root / "0" / "index.json"), "s3://nowhere/0/index.json")]
    merge_index(parts, str(root))
    assert [sample["id"] for sample in StreamingDataset(local=str(root))[:]] == [10, 0]
    (root / "index.json").unlink()
    merge_index(out=str(root))
    assert [sample["id"] for sample in StreamingDataset(local=str(root))[:]] == [0, 1, 2, 10]
    (root / "index.json").unlink()
    merge_index(index_file_urls=parts, out=str(root))
    assert [sample["id"] for sample in StreamingDataset(local=str(root))[:]] == [10, 0]
    (root / "index.json").unlink()
    (tmp_path / "b").mkdir()
    merge_index(parts, (str(root), f"file://{tmp_path}/b"), keep_local=False)
    assert not (root / "index.json").exists()
    assert len(json.loads((tmp_path / "b" / "index.json").read_text())["shards"]) == 2
    with pytest.raises(ConfigError, match="outside the folder"):
        merge_index(parts, str(tmp_path / "b"))
    with pytest.raises(ConfigError, match="needs a folder"):
        merge_index(parts)  # pyright: ignore
    with pytest.raises(ConfigError, match="needs a folder"):
        merge_index()  # pyright: ignore


def test_there_is_nothing_to_clean() -> None:
    assert clean_stale_shared_memory() is None

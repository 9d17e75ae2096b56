"""Verbs × datasets with splits and folders of datasets: the split that is read is named, and siblings are listed."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cli.called import called

import penstock as ps

SIBLINGS = ("books", "code", "math", "web", "wiki")
VERBS = {
    "info": (),
    "head": (),
    "find": ("--where", "n >= 0"),
    "report": ("-o", "{out}.html"),
    "convert": ("{out}.jsonl", "--to", "jsonl"),
    "diff": ("{same}",),
    "filter": ("-o", "{out}", "--where", "n >= 0"),
    "shuffle": ("-o", "{out}", "--seed", "1"),
    "merge": ("-o", "{out}"),
    "split": ("-o", "{out}", "--parts", "2", "--only", "0"),
    "energon preview": (),
    "energon lint": (),
    "pack": ("-o", "{out}.pbin", "--tokenizer", "bytes"),
    "plan": ("--global-batch", "1"),
    "purge": ("-o", "{out}"),
    "exclude": ("--indices", "0", "--reason", "r"),
}
"""Verb → further arguments for a dataset whose samples are `{"n": …}`."""


def refused(verb: str) -> tuple[int, ...]:
    """Return the exit statuses that a refusal doesn't have; those of Energon's commands are all 1."""
    return (0, 70) if verb.startswith("energon") else (0, 1, 70)


def write_saved(folder: Path, rows: list[int]) -> None:
    """Write what `Dataset.save_to_disk` writes, by pyarrow."""
    folder.mkdir(parents=True)
    table = pa.table({"n": rows})
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as file:
        file.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"n": {"dtype": "int64", "_type": "Value"}}}))


def write_dict(folder: Path, splits: dict[str, list[int]]) -> Path:
    for name, rows in splits.items():
        write_saved(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def write_siblings(folder: Path) -> Path:
    for name in SIBLINGS:
        with ps.create(folder / name, format="mds", columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    return folder


def arguments(verb: str, path: Path, tmp_path: Path) -> list[str]:
    if verb == "plan":
        (tmp_path / "run.yaml").write_text(f"path: {path}\n")
        path = tmp_path / "run.yaml"
    names = {"out": str(tmp_path / "out"), "same": str(path)}
    return [*verb.split(), str(path), *(one.format(**names) for one in VERBS[verb])]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_names_the_split_that_it_reads(verb: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_dict(tmp_path / "saved", {"train": [1, 2], "validation": [3], "test": [4]})
    with caplog.at_level(logging.WARNING):
        done = called(*arguments(verb, path, tmp_path))
    text = (done.stdout + done.stderr) + caplog.text
    if done.returncode == 0:
        assert "split train of train, validation, test" in text
    else:
        assert all(name in text for name in ("train", "validation", "test")), text


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_requires_a_split_without_train(verb: str, tmp_path: Path) -> None:
    path = write_dict(tmp_path / "saved", {"dev": [1, 2], "test": [4]})
    done = called(*arguments(verb, path, tmp_path))
    assert done.returncode not in refused(verb), done.stdout + done.stderr
    assert "dev" in (done.stdout + done.stderr)
    assert "test" in (done.stdout + done.stderr)


@pytest.mark.parametrize("verb", [*VERBS, "verify"])
def test_datasets_in_one_folder_are_not_splits(verb: str, tmp_path: Path) -> None:
    path = write_siblings(tmp_path / "all")
    done = called("verify", str(path)) if verb == "verify" else called(*arguments(verb, path, tmp_path))
    assert done.returncode not in refused(verb), done.stdout + done.stderr
    if verb != "pack":  # it reads no shards at all
        assert all(name in (done.stdout + done.stderr) for name in SIBLINGS), done.stdout + done.stderr


def test_verify_checks_all_splits(tmp_path: Path) -> None:
    path = write_dict(tmp_path / "saved", {"train": [1, 2], "test": list(range(1000))})
    assert called("verify", str(path)).returncode == 0
    data = path / "test/data-00000-of-00001.arrow"
    data.write_bytes(data.read_bytes()[:-200])
    done = called("verify", str(path))
    assert done.returncode == 1
    assert "/test/" in (done.stdout + done.stderr)
    shutil.rmtree(path / "test")
    done = called("verify", str(path))
    assert done.returncode == 1
    assert f"{path}/test" in (done.stdout + done.stderr)


def test_a_split_or_one_of_the_datasets_can_be_named(tmp_path: Path) -> None:
    saved = write_dict(tmp_path / "saved", {"train": [1, 2], "test": [4]})
    assert [row["n"] for row in map(ps.open(saved, split="test").__getitem__, range(1))] == [4]
    assert len(ps.open(write_siblings(tmp_path / "all") / "math")) == 1
    assert len(ps.open(tmp_path / "all", split="math")) == 1

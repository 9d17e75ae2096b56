"""Law: every verb that takes or prints a sample's key knows it in every format that can hold keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import main

import penstock as ps

KEYS = [f"https://example.org/{number}" for number in (4, 0, 3, 1, 2)]
PLAIN = [f"k{number}" for number in (4, 0, 3, 1, 2)]
"""For tars, in which keys are parts of names."""


def lines(path: Path) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"id": key, "text": key}) + "\n" for key in KEYS))
    return path


def folder_of_lines(path: Path) -> Path:
    path.mkdir()
    for name, keys in (("a.jsonl", KEYS[:2]), ("b.jsonl", KEYS[2:])):
        (path / name).write_text("".join(json.dumps({"url": key}) + "\n" for key in keys))
    return path


def table(path: Path) -> Path:
    path = path.with_suffix(".parquet")
    pq.write_table(pa.table({"doc_id": KEYS, "text": KEYS}), path)
    return path


def saved_to_disk(path: Path) -> Path:
    path.mkdir()
    rows = pa.table({"id": KEYS, "text": KEYS})
    with pa.OSFile(str(path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def written(format: str, keys: list[str], **options: Any) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        with ps.create(path, format=format, **options) as writer:
            for key in keys:
                writer.write({"__key__" if keys is PLAIN else "key": key, "txt": key})
        return path

    return write


DATASETS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "jsonl": (lines, KEYS),
    "jsonl-files": (folder_of_lines, KEYS),
    "parquet": (table, KEYS),
    "hf": (saved_to_disk, KEYS),
    "csv": (written("csv", KEYS, columns={"key": "str", "txt": "str"}), KEYS),
    "mds": (written("mds", KEYS, columns={"key": "str", "txt": "str"}), KEYS),
    "json-shards": (written("json-shards", KEYS, columns={"key": "str", "txt": "str"}), KEYS),
    "webdataset": (written("webdataset", PLAIN), PLAIN),
}

Call = Callable[..., Any]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def called(*words: object, status: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--json"])
        out, err = capsys.readouterr()
        assert ended.value.code == status, (words, err)
        return json.loads(out) if out.strip() else None

    return called


def find(call: Call, path: Path, key: str) -> Iterator[Any]:
    for one in call("find", path, "--key", key)["found"]:
        yield one["index"], one["key"]


def head(call: Call, path: Path, key: str) -> Iterator[Any]:
    for one in call("head", path, "--key", key)["samples"]:
        yield one["index"], key


def preview(call: Call, path: Path, key: str) -> Iterator[Any]:
    for one in call("energon", "preview", path, "--key", key, "-n", "1")["samples"]:
        yield one["index"], key


def _recipe(path: Path) -> Path:
    recipe = path.parent / "run.json"
    recipe.write_text(json.dumps(ps.Shuffle(ps.open(path), seed=7).recipe()))
    return recipe


def explain_step(call: Call, path: Path, key: str) -> Iterator[Any]:
    for one in call("explain", _recipe(path), "--step", "0", "--global-batch", "5")["samples"]:
        if one["key"] == key:
            yield one["index"], one["key"]


def explain_show(call: Call, path: Path, key: str) -> Iterator[Any]:
    shown = call("explain", _recipe(path), "--step", "0", "--global-batch", "5", "--show", "--key", key)
    [one] = shown["shown"]
    yield next(row["index"] for row in shown["samples"] if row["position"] == one["position"]), key


def explain_document(call: Call, path: Path, key: str) -> Iterator[Any]:
    for one in call("explain", _recipe(path), "--document", key, "--global-batch", "2")["samples"]:
        yield one["index"], one["key"]


def exclude(call: Call, path: Path, key: str) -> Iterator[Any]:
    call("exclude", path, "--key", key, "--reason", "asked for")
    for one in call("exclude", path, "--show")["entries"]:
        yield one["index"], one["key"]


def exclude_undo(call: Call, path: Path, key: str) -> Iterator[Any]:
    call("exclude", path, "--indices", _numbers(path, range(5)), "--reason", "asked for")
    call("exclude", path, "--undo", "--key", key)
    rest = {one["index"] for one in call("exclude", path, "--show")["entries"]}
    for index in {*range(5)} - rest:
        yield index, key


def exclude_also(call: Call, path: Path, key: str) -> Iterator[Any]:
    """The other dataset holds the same samples, and no side file records so."""
    other = path.parent / "other.jsonl"
    other.write_text("".join(json.dumps({"key": one}) + "\n" for one in chain(KEYS[::-1], PLAIN[::-1])))
    call("exclude", path, "--key", key, "--reason", "asked for", "--also", other)
    for one in call("exclude", other, "--show")["entries"]:
        yield 4 - one["index"] % 5, one["key"]


def _numbers(path: Path, numbers: range) -> Path:
    file = path.parent / "numbers"
    file.write_text("\n".join(map(str, numbers)))
    return file


VERBS = (find, head, preview, explain_step, explain_show, explain_document, exclude, exclude_undo, exclude_also)


@pytest.mark.parametrize("format", DATASETS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_knows_the_keys_of_every_format(
    tmp_path: Path, call: Call, verb: Callable[[Call, Path, str], Iterator[Any]], format: str
) -> None:
    write, keys = DATASETS[format]
    path = write(tmp_path / "data")
    assert list(verb(call, path, keys[2])) == [(2, keys[2])]


def test_keys_that_are_numbers_are_not_the_numbers_of_samples(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": key}) + "\n" for key in (2, 0, 1)))
    for verb in (find, head, preview, explain_document, exclude):
        assert [index for index, _ in verb(call, path, "2")] == [0], verb
    assert call("head", path, "--key", "3", status=9)["error"]["code"] == "not-found"


def test_without_keys_the_number_of_a_sample_is_its_key(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    for verb in (head, preview, explain_document):
        assert [index for index, _ in verb(call, path, "1")] == [1], verb


def test_a_key_in_every_part_of_a_blend(tmp_path: Path, call: Call) -> None:
    parts = {name: lines(tmp_path / name) for name in ("a", "b")}
    streams = {name: ps.Shuffle(ps.open(path), seed) for seed, (name, path) in enumerate(parts.items())}
    blend = ps.Blend(streams, {"a": 1, "b": 1}, seed=2)
    (tmp_path / "run.json").write_text(json.dumps(blend.recipe()))
    rows = call("explain", tmp_path / "run.json", "--step", "0", "--global-batch", "10")["samples"]
    assert [one["key"] for one in rows] == [KEYS[one["index"]] for one in rows]
    found = call("explain", tmp_path / "run.json", "--document", KEYS[1], "--global-batch", "1", "--step", "9")
    assert [one["position"] for one in found["samples"]] == [one["position"] for one in rows if one["key"] == KEYS[1]]

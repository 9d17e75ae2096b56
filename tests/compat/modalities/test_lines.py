"""Modalities' readers of JSONL: the lines and texts that it reads, and errors where it reads something else."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.internals import build_index

from penstock.compat.modalities import LargeFileLinesReader, MemMapDataset, create_raw_data_index
from penstock.compat.modalities.dataloader.create_index import IndexGenerator
from penstock.errors import Corrupt, FormatError, MissingExtra, NotFound, UnsafeData

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
VIEWS = json.loads((GOLDEN / "views.json").read_text())
EDGE = GOLDEN / "raw" / "edge"
# An empty file can't be mapped by the original; the others all work there.
READER = {name: case for name, case in VIEWS["reader"].items() if name != "empty"}


class Characters:
    """A tokenizer that knows characters."""

    def tokenize(self, text: str) -> list[int]:
        return [ord(character) for character in text]


def index_of(name: str) -> Path:
    return EDGE / Path(VIEWS["reader"][name]["index_file"]).name


# --- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READER)
def test_reader_golden(name: str) -> None:
    path, index = EDGE / f"{name}.jsonl", index_of(name)
    text = LargeFileLinesReader(path, index)
    assert list(text) == READER[name]["text"]["value"]
    assert text.index.tolist() == READER[name]["index"]
    stored = LargeFileLinesReader(path, index, encoding=None)
    assert [line.decode("latin-1") for line in stored] == READER[name]["bytes_as_latin1"]["value"]
    up_to_next = LargeFileLinesReader(path, index, encoding=None, use_sample_length_from_index=False)
    assert [line.decode("latin-1") for line in up_to_next] == READER[name]["bytes_to_next_start_as_latin1"]["value"]


def test_an_empty_file_has_no_lines() -> None:
    assert list(LargeFileLinesReader(EDGE / "empty.jsonl", index_of("empty"))) == []


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "a.b.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    (folder / "a.b.idx").unlink(missing_ok=True)
    build_index(path)
    return path


def test_places_and_indices(tmp_path: Path) -> None:
    path = write(tmp_path, ['{"text": "a"}', '{"text": "é"}'])
    for given in (path, str(path)):
        reader = LargeFileLinesReader(given)
        assert reader.index_path == LargeFileLinesReader.default_index_path(given) == tmp_path / "a.b.idx"
        assert (reader[-1], len(reader)) == ('{"text": "é"}', 2)
    # The original gives an empty line here.
    assert LargeFileLinesReader(path, use_sample_length_from_index=False)[-1] == '{"text": "é"}\n'
    for outside in (2, -3):
        with pytest.raises(IndexError):
            reader[outside]
    with pytest.raises(UnicodeDecodeError):
        LargeFileLinesReader(path, encoding="ascii")[1]
    assert pickle.loads(pickle.dumps(reader))[0] == reader[0]
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader[0]


def test_missing_files(tmp_path: Path) -> None:
    path = write(tmp_path, ["1"])
    with pytest.raises(FileNotFoundError):
        LargeFileLinesReader(tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="penstock index"):
        LargeFileLinesReader(path, tmp_path / "none.idx")
    # None is made by the way: the original does not, and a wrong path should not go unnoticed.
    assert not (tmp_path / "none.idx").exists()
    with pytest.raises(NotFound):
        LargeFileLinesReader(tmp_path, tmp_path / "a.b.idx")


def test_texts_make_a_missing_index(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "c"}\n')
    with ThreadPoolExecutor(4) as pool:  # the ranks of a run
        made = list(pool.map(lambda _: MemMapDataset(path, Characters(), "input_ids"), range(4)))
    assert [list(one) for one in made] == [[[97, 98], [99]]] * 4
    expected = tmp_path / "expected.idx"
    build_index(path, expected)
    assert (tmp_path / "a.idx").read_bytes() == expected.read_bytes()
    MemMapDataset(path, Characters(), "input_ids", index_path=tmp_path / "elsewhere.idx")
    assert (tmp_path / "elsewhere.idx").exists()
    with pytest.raises(NotFound):
        MemMapDataset(tmp_path / "none.jsonl", Characters(), "input_ids")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(Corrupt, match="line 1"):
        MemMapDataset(tmp_path / "bad.jsonl", Characters(), "input_ids")
    assert not (tmp_path / "bad.idx").exists()


def test_an_index_of_another_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ["[1, 2]", "[3]", "[4]"])
    path.write_text("[1]\n[2, 3]\n[4, 5, 6]\n")
    with pytest.raises(Corrupt, match="penstock index"):
        LargeFileLinesReader(path)
    path.write_text("[1, 2]\n[3]\n[4]\n[5]\n")
    with pytest.raises(Corrupt, match="after the last"):
        LargeFileLinesReader(path)


def test_an_index_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ["1"])
    (tmp_path / "a.b.idx").write_bytes(pickle.dumps([print]))
    with pytest.raises((FormatError, UnsafeData)):
        LargeFileLinesReader(path)


# --- texts -----------------------------------------------------------------------------------------------------------


def test_texts_as_ids() -> None:
    dataset = MemMapDataset(GOLDEN / "raw" / "docs.jsonl", Characters(), sample_key="unused")
    texts = [json.loads(line)["text"] for line in (GOLDEN / "raw" / "docs.jsonl").read_bytes().split(b"\n") if line]
    assert len(dataset) == len(texts) == 200
    assert list(dataset) == [[ord(character) for character in text] for text in texts]
    assert dataset[-1] == dataset[199]
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert pickle.loads(pickle.dumps(dataset))[5] == dataset[5]
    for outside in (200, -201):
        with pytest.raises(IndexError):
            dataset[outside]


@pytest.mark.parametrize("line", ['{"text": null}', "{}", '{"text": 3}', '{"text": ["a"]}', "[]", '"a"', "3"])
def test_a_line_without_a_text_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, ['{"text": "good"}', line, '{"text": "good"}'])
    dataset = MemMapDataset(path, Characters(), "x")
    assert dataset[0] == dataset[2]
    with pytest.raises(Corrupt, match="index 1") as caught:
        dataset[1]
    assert caught.value.offset_bytes == len('{"text": "good"}\n')
    assert caught.value.path == str(path)


def test_own_index_and_pattern(tmp_path: Path) -> None:
    path = write(tmp_path, ['{"m": {"t": "ab"}}', '{"m": {"t": "c"}}'])
    index = shutil.move(tmp_path / "a.b.idx", tmp_path / "other.idx")
    dataset = MemMapDataset(path, Characters(), "x", index_path=index, jq_pattern=".m.t")
    assert list(dataset) == [[97, 98], [99]]


@pytest.mark.parametrize("name", VIEWS["jq_text"])
def test_jq_text_golden(name: str) -> None:
    dataset = MemMapDataset(EDGE / f"{name}.jsonl", Characters(), "x")
    for index, expected in enumerate(VIEWS["jq_text"][name]):
        if expected.get("value") is None:
            # Where jq gives null, the original fails in its tokenizer.
            with pytest.raises(Corrupt, match=f"index {index} has no text"):
                dataset[index]
        else:
            assert dataset[index] == [ord(character) for character in expected["value"]]


@pytest.mark.parametrize("case", VIEWS["jq_patterns"], ids=lambda case: f"{case['pattern']} of {case['doc']}")
def test_jq_patterns_golden(tmp_path: Path, case: dict[str, Any]) -> None:
    dataset = MemMapDataset(write(tmp_path, [case["doc"]]), Characters(), "x", jq_pattern=case["pattern"])
    expected = case["first"].get("value")
    if isinstance(expected, str):
        assert dataset[0] == [ord(character) for character in expected]
        assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]
    else:
        with pytest.raises(Corrupt, match="no text"):
            dataset[0]


def test_patterns_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ['{"text": "a"}'])
    with pytest.raises(ValueError, match="jq"):
        MemMapDataset(path, Characters(), "x", jq_pattern=".a |")
    monkeypatch.setitem(sys.modules, "jq", None)
    assert list(MemMapDataset(path, Characters(), "x")) == [[97]]
    with pytest.raises(MissingExtra, match="jq"):
        MemMapDataset(path, Characters(), "x", jq_pattern=".text | ltrimstr(1)")


# --- indexes ---------------------------------------------------------------------------------------------------------


def test_the_generator_of_indexes(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a"}\n{bad\n{"text": "b"}\n')
    index = tmp_path / "x.idx"
    with pytest.raises(ValueError, match="line 2 is not valid JSON"):
        IndexGenerator(lines).create_index(index)
    assert not index.exists()
    with pytest.warns(UserWarning, match="1 invalid lines skipped: 2"):
        IndexGenerator(lines, drop_faulty_entries=True).create_index(index)
    assert pickle.loads(index.read_bytes()) == [(0, 13), (19, 13)]
    lines.write_text('{"text": "new"}\n')
    IndexGenerator(lines).create_index(index)
    assert pickle.loads(index.read_bytes()) == [(0, 15)]
    with pytest.raises(FileNotFoundError):
        IndexGenerator(tmp_path / "missing.jsonl")


def test_a_faulty_line_is_the_originals_error(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("{bad\n")
    with pytest.raises(ValueError, match="line 1 is not valid JSON") as caught:
        create_raw_data_index(lines, tmp_path / "x.idx")
    assert isinstance(caught.value, Corrupt)

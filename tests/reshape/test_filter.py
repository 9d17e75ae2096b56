"""`filter`: what fits, in order, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reshape.datasets import DOCUMENTS, documents_in, lines_in, sound, write_lines, write_tokens

import penstock as ps
from penstock import filter
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats import create

ROWS: list[Any] = [
    {"text": "Alpha", "lang": "en", "meta": {"n": 1}},
    {"text": "beta", "lang": "de"},
    {"lang": "en"},
    {"text": None, "meta": {"n": 5}},
    "a text",
    {"text": "gamma alpha", "lang": "en", "meta": {"n": 7}},
]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


@settings(max_examples=15, deadline=None)
@given(DOCUMENTS, st.integers(0, 20), st.integers(0, 30), st.booleans())
def test_by_length(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], least: int, most: int, invert: bool
) -> None:
    folder = tmp_path_factory.mktemp("filter")
    source = write_tokens(folder / "a.pbin", documents)
    report = filter(source, folder / "b.pbin", min_tokens=least, max_tokens=most, invert=invert)
    expected = [document for document in documents if (least <= len(document) <= most) != invert]
    assert documents_in(folder / "b.pbin") == expected
    assert report.dropped == len(documents) - len(expected)
    assert sound(folder / "b.pbin")


def test_the_filtered_file_of_modalities(golden: Path, tmp_path: Path) -> None:
    source = golden / "modalities" / "pbin" / "docs.bpe2.pbin"
    filter(source, tmp_path / "b.pbin", indices=range(0, 200, 2))
    expected = golden / "modalities" / "pbin" / "docs.bpe2.filtered_even.pbin"
    assert (tmp_path / "b.pbin").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"match": "[Aa]lpha"}, [0, 5]),
        ({"match": "^e", "field": "lang"}, [0, 2, 5]),
        ({"match": ".", "field": "value"}, [4]),
        ({"match": "5", "field": "meta.n"}, []),
        ({"where": "meta.n >= 5"}, [3, 5]),
        ({"where": "lang == 'en' and text != None"}, [0, 5]),
        ({"where": "value"}, [4]),
        ({"where": "lang == 'en'", "match": "gamma"}, [5]),
        ({"where": "lang == 'en'", "indices": [5, 1, 5]}, [5]),
        ({"indices": [4, 0]}, [0, 4]),
        ({"indices": []}, []),
        ({"indices": [4, 0], "invert": True}, [1, 2, 3, 5]),
    ],
)
def test_lines(lines: Path, tmp_path: Path, conditions: dict[str, Any], expected: list[int]) -> None:
    report = filter(lines, tmp_path / "b.jsonl", **conditions)
    assert lines_in(tmp_path / "b.jsonl") == [json.dumps(ROWS[i]).encode() for i in expected]
    assert (report.output.samples, report.dropped) == (len(expected), len(ROWS) - len(expected))


def test_files_of_indices(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("5\n0\n\n3\n")
    np.save(tmp_path / "some.npy", np.array([5, 0, 3], np.uint8))
    for name in ("some.txt", "some.npy"):
        filter(lines, tmp_path / "b.jsonl", indices=tmp_path / name, overwrite=True)
        assert lines_in(tmp_path / "b.jsonl") == [json.dumps(ROWS[i]).encode() for i in (0, 3, 5)]


def test_refused_indices(lines: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "float.npy", np.array([1.5]))
    np.save(tmp_path / "object.npy", np.array([print], object))
    np.save(tmp_path / "square.npy", np.zeros((2, 2), np.int64))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "words.txt").write_text("1 two")
    (tmp_path / "huge.txt").write_text(str(10**30))
    for name in ("float.npy", "object.npy", "square.npy", "cut.npy", "words.txt", "huge.txt"):
        with pytest.raises(ConfigError, match="not a list of indices"):
            filter(lines, tmp_path / "b.jsonl", indices=tmp_path / name)
    for indices in ([6], [-1]):
        with pytest.raises(ConfigError, match="index out of range"):
            filter(lines, tmp_path / "b.jsonl", indices=indices)
    with pytest.raises(NotFound):
        filter(lines, tmp_path / "b.jsonl", indices=tmp_path / "nothing.txt")
    assert not (tmp_path / "b.jsonl").exists()


def test_refusals(lines: Path, tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "a.pbin", [[1]])
    for source, conditions, what in (
        (lines, {}, "no filter condition"),
        (lines, {"min_tokens": 3}, "lines have no tokens"),
        (tokens, {"match": "x"}, "no fields"),
        (tokens, {"where": "x"}, "no fields"),
        (lines, {"match": "("}, "regular expression"),
        (lines, {"where": "import os"}, "syntax error in the expression"),
    ):
        with pytest.raises(ConfigError, match=what):
            filter(source, tmp_path / "b.jsonl", **conditions)
    with pytest.raises(PrepareError, match="line at index 2: None has no length"):
        filter(lines, tmp_path / "b.jsonl", where="len(text) > 3")
    assert not (tmp_path / "b.jsonl").exists()


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["x", "y"])
    ps.index(path)
    path.write_bytes(path.read_bytes().replace(b'"y"}', b'"y"]'))
    with pytest.raises(Corrupt, match="line at index 1 is not valid JSON"):
        filter(path, tmp_path / "c.jsonl", where="id == 1")


def test_nan_and_bom_and_surrogates_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [b'\xef\xbb\xbf{"text": "b"}', b'{"text": "c", "x": NaN}', b' {"text": "\\ud800"} \r']
    path.write_bytes(b"\n".join(rows))
    filter(path, tmp_path / "b.jsonl", where="text != 'c'")
    assert lines_in(tmp_path / "b.jsonl") == [rows[0], rows[2]]


@pytest.mark.parametrize(
    ("conditions", "missing", "nearest"),
    [
        ({"where": 'langg == "en"'}, "langg", "lang"),
        ({"where": 'langg != "en"'}, "langg", "lang"),
        ({"where": "len(text) > 2 and meta.m == 1"}, "meta.m", "meta.n"),
        ({"where": "lang == 'en' or lower(meta['a long one']) == 'a'"}, "meta.a long one", None),
        ({"match": "a", "field": "txt"}, "txt", "text"),
        ({"match": "a", "field": "txt", "invert": True}, "txt", "text"),
    ],
)
def test_a_field_that_no_line_has(
    lines: Path, tmp_path: Path, conditions: dict[str, Any], missing: str, nearest: str | None
) -> None:
    with pytest.raises(ConfigError, match="no sample has this field") as caught:
        filter(lines, tmp_path / "b.jsonl", **conditions)
    assert caught.value.found == repr(missing)
    assert caught.value.hint == (f"Did you mean {nearest!r}?" if nearest else None)
    assert not (tmp_path / "b.jsonl").exists()


def test_a_field_of_one_line_among_many(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": i} | ({"rare": 1} if i == 701 else {})) + "\n" for i in range(2000)))
    filter(path, tmp_path / "b.jsonl", where="rare == 1")
    assert lines_in(tmp_path / "b.jsonl") == [b'{"id": 701, "rare": 1}']


def test_a_column_that_shards_lack(tmp_path: Path) -> None:
    with create(tmp_path / "a", format="mds", columns={"text": "str"}) as writer:
        writer.write({"text": "a"})
    with pytest.raises(ConfigError, match=r"'txt', expected one of text\. Did you mean 'text'"):
        filter(tmp_path / "a", tmp_path / "b", where="txt == 'a'")

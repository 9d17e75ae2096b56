"""The rule for EOS tokens, on runs of documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import shuffle
from penstock.convert import EosRule, convert
from penstock.errors import ConfigError


def run_of(docs: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for doc in docs for token in doc], np.uint8)
    return tokens, np.array([len(doc) for doc in docs], np.int64)


def split(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if len(lengths) else []


@settings(deadline=None, max_examples=60)
@given(docs=st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8), eos_id=st.sampled_from([0, 3, 300, 70_000]))
def test_added_and_stripped_again(docs: list[list[int]], eos_id: int) -> None:
    tokens, lengths = run_of([[token for token in doc if token != eos_id] for doc in docs])
    docs = split(tokens, lengths)
    added = EosRule("add", eos_id).apply(tokens, lengths, 0, "a")
    assert split(*added) == [[*doc, eos_id] for doc in docs]
    assert split(*EosRule("strip", eos_id).apply(*added, 0, "a")) == docs
    kept = EosRule().apply(tokens, lengths, 0, "a")
    assert kept[0] is tokens


def test_the_document_is_counted_from_the_start_of_the_data() -> None:
    tokens, lengths = run_of([[1, 0], [2, 1], [3, 0]])
    with pytest.raises(ConfigError, match="document 101 ") as caught:
        EosRule("strip", 0).apply(tokens, lengths, 100, "a")
    assert (caught.value.path, caught.value.found, caught.value.expected) == ("a", "id 1", "id 0")


def test_it_is_never_added_twice() -> None:
    tokens, lengths = run_of([[1, 2], [], [3, 0]])
    with pytest.raises(ConfigError, match="document 102 already ends"):
        EosRule("add", 0).apply(tokens, lengths, 100, "a")
    assert len(EosRule("add", 9).apply(tokens, lengths, 100, "a")[0]) == 7


def test_a_promised_end_is_looked_at() -> None:
    tokens, lengths = np.array([5, 0, 6, 7], np.uint16), np.array([2, 0, 2])
    with pytest.raises(ConfigError, match="document 101 doesn't end with the EOS given by --eos-id") as caught:
        EosRule(promised=0).apply(tokens, lengths, 100, "a")
    assert caught.value.found == "no token"
    with pytest.raises(ConfigError, match="document 101") as caught:
        EosRule(promised=0).apply(tokens, lengths[[0, 2]], 100, "a")
    assert (caught.value.found, caught.value.expected) == ("id 7", "id 0")
    same = EosRule(promised=0).apply(tokens[:2], lengths[:1], 0, "a")
    assert split(*same) == [[5, 0]]


def test_what_is_known_afterwards() -> None:
    assert EosRule().known_after(5) == 5
    assert EosRule("add", 7).known_after(None) == 7
    assert EosRule("strip", 5).known_after(5) is None
    EosRule("strip", 5).require_sense("a", 5)
    EosRule("strip", 5).require_sense("a", None)


def raw(path: Path, ids: list[int]) -> Path:
    path.write_bytes(np.array(ids, "<u2").tobytes())
    return path


def test_an_id_that_parts_documents_and_is_not_there_is_refused(tmp_path: Path) -> None:
    source, out = raw(tmp_path / "a.bin", [5, 6, 0, 7, 8, 0]), tmp_path / "a.pbin"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"ids": [5, 6, 0, 7]}\n{"ids": [8, 0]}\n')
    np.save(tmp_path / "a.npy", np.array([5, 6, 0], np.uint16))
    for data, options in (
        (source, {"layout": "uint16"}),
        (tmp_path / "a.npy", {}),
        (rows, {"tokens_column": "ids", "one_document": True}),
    ):
        with pytest.raises(ConfigError, match="no token has the id") as caught:
            convert(data, out, eos_id=77, **options)
        assert "--eos-id" in str(caught.value)
        assert not out.exists()
    assert [one.code for one in ps.verify(source, layout="uint16", eos_id=77, depth="full")] == ["raw-tokens.no-eos"]
    assert not ps.verify(source, layout="uint16", eos_id=0, depth="full")


@pytest.mark.parametrize("verb", ["convert", "shuffle", "by parts"])
def test_an_open_end_is_not_said_to_end_in_the_id(tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture) -> None:
    source, out = raw(tmp_path / "a.bin", [5, 6, 0, 7, 8, 0, 9, 9]), tmp_path / "a.pbin"
    if verb == "shuffle":
        shuffle(source, out, seed=1, to="pbin", layout="uint16", eos_id=0)
    else:
        convert(source, out, layout="uint16", eos_id=0, **({"workers": 2} if verb == "by parts" else {}))
    assert "the last document doesn't end with id 0" in caplog.text
    assert ps.open(out).eos_id is None
    assert not ps.verify(out, depth="full")

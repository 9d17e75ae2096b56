"""The rule for EOS tokens, on runs of documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.convert.eos import EosRule
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
    with pytest.raises(ConfigError, match="document 102 ends already"):
        EosRule("add", 0).apply(tokens, lengths, 100, "a")
    assert len(EosRule("add", 9).apply(tokens, lengths, 100, "a")[0]) == 7


def test_a_promised_end_is_looked_at() -> None:
    tokens, lengths = np.array([5, 0, 6, 7], np.uint16), np.array([2, 0, 2])
    with pytest.raises(ConfigError, match="document 101 does not end in the EOS that --eos-id") as caught:
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

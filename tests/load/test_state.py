from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError, ResumeMismatch
from penstock.load.describe import Description, key_of
from penstock.load.explain import run_of
from penstock.load.history import Stretch
from penstock.load.state import Difference, account, check, compare, decode, encode

HISTORY = (Stretch(0, 0, 8, 2), Stretch(5, 40, 16, 4))
DESCRIPTION = Description("feistel-1", "aaaaaaaaaaaa", {"books": "b1", "web/de": "d1", "web/en": "e1"}, {"books": 12})


def test_a_state_is_plain_json_and_comes_back() -> None:
    state = json.loads(json.dumps(encode(DESCRIPTION, 72, HISTORY, [])))
    assert set(state) == {"version", "order", "consumed", "children", "recipe", "history", "reads"}
    assert state["reads"] == [12, None, None]
    assert state["history"] == [[0, 0, 8, 2], [5, 40, 16, 4]]
    saved = decode(state)
    assert (saved.consumed, saved.step, saved.history, saved.reads) == (72, 7, HISTORY, {"books": 12})
    assert compare(saved, DESCRIPTION) == []


def test_accepted_differences_stay_in_the_state() -> None:
    state = json.loads(json.dumps(encode(DESCRIPTION, 72, HISTORY, [(40, "books", "old", "new")])))
    assert state["accepted"] == [[40, "books", "old", "new"]]
    assert decode(state).accepted == ((40, "books", "old", "new"),)


def test_differences_are_named() -> None:
    saved = decode(encode(DESCRIPTION, 72, HISTORY, []))
    other = Description("feistel-2", "bbbbbbbbbbbb", {"books": "b2", "web/de": "d1", "code": "c1"}, {})
    assert compare(saved, other) == [
        Difference("books", "b1", "b2"),
        Difference("web/en", "e1", "none"),
        Difference("code", "none", "c1"),
        Difference("recipe", "aaaaaaaaaaaa", "bbbbbbbbbbbb"),
        Difference("order", "feistel-1", "feistel-2"),
    ]


@pytest.mark.parametrize("name", ["web/de", "de", "web"])
def test_a_child_is_accepted_by_its_place_its_name_or_what_is_above(name: str) -> None:
    found = [Difference("web/de", "d1", "d2")]
    assert check(found, [name], DESCRIPTION) == found
    assert check([], [name], DESCRIPTION) == []


def test_what_is_not_accepted_is_refused_by_name() -> None:
    found = [Difference("books", "b1", "b2"), Difference("recipe", "a", "b")]
    with pytest.raises(ResumeMismatch, match=r"books, recipe.*found books b2, recipe b, expected books b1, recipe a"):
        check(found, [], DESCRIPTION)
    with pytest.raises(ResumeMismatch) as caught:
        check(found, ["books"], DESCRIPTION)
    assert "books" not in str(caught.value)
    with pytest.raises(ConfigError, match="'bokos'"):
        check(found, ["bokos"], DESCRIPTION)


def test_the_file_of_what_differs_is_named(tmp_path: Path) -> None:
    for name, length in (("a", 20), ("b", 24)):
        with ps.create(tmp_path / f"{name}.pbin", format="pbin", token_bytes=2) as writer:
            writer.write({"tokens": range(length)})
    one, other = (ps.Chunk(4)(ps.open(tmp_path / f"{name}.pbin")) for name in "ab")
    weights = {"one": 1, "other": 1}
    mixed = [ps.Blend({"one": one, "other": last}, weights, seed=1) for last in (one, other)]
    state = ps.Loader(mixed[0], 2, workers=0).state_dict()
    for refused in (lambda: ps.Loader(mixed[1], 2).load_state_dict(state), lambda: run_of(mixed[1], None, None, state)):
        with pytest.raises(ResumeMismatch, match=r"b\.pbin: .*different: other: "):
            refused()


def test_an_account_says_what_it_means() -> None:
    assert "its first 12 positions" in account(Difference("books", "b1", "b2"), 40, DESCRIPTION.reads)
    assert "its part of the first 40 samples" in account(Difference("web/de", "d1", "d2"), 40, DESCRIPTION.reads)
    assert "no longer exists" in account(Difference("books", "b1", "none"), 40, {})
    assert "is new" in account(Difference("books", "none", "b1"), 40, {})
    assert "reassigned to positions, so parts" in account(Difference("recipe", "a", "b"), 40, {})


def test_an_account_of_other_weights_says_which_positions_come_again() -> None:
    told = account(
        Difference("recipe", "a", "b"), 40, {"books": 15, "web": 25, "same": 3}, {"books": 12, "web": 28, "same": 3}
    )
    assert told.endswith(
        "reassigned to positions; positions of books: [12, 15) are skipped; positions of web: [25, 28) are repeated"
    )
    many = {f"{i:02}": i for i in range(20)}
    assert account(Difference("recipe", "a", "b"), 40, many, dict.fromkeys(many, 30)).endswith("; and 4 more")


def test_a_cut_name_is_accepted_by_the_whole_one() -> None:
    name = "a-source-with-a-name-that-is-longer-than-the-state-has-room-for"
    assert len(key_of(name)) < len(name)
    assert check([Difference(key_of(name), "a", "b")], [name], Description("", "", {}, {}))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"consumed": -1},
        {"consumed": True},
        {"consumed": 73},
        {"consumed": "72"},
        {"children": ["books"]},
        {"history": []},
        {"history": "long"},
        {"history": [[0, 0, 8]]},
        {"history": [[0, 0, 8, 0]]},
        {"history": [[0, 0, 0, 1]]},
        {"history": [[1, 0, 8, 2]]},
        {"history": [[0, 0, 8, 2], [5, 41, 16, 4]]},
        {"history": [[0, 0, 8, 2], [0, 0, 16, 4]]},
        {"accepted": [["books"]]},
        {"accepted": 7},
        {"reads": [1]},
        {"reads": [1, 2, -3]},
        {"reads": "all"},
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ResumeMismatch, match="not a state that can be loaded"):
        decode({**encode(DESCRIPTION, 72, HISTORY, []), **change})


def test_a_missing_part_and_a_foreign_object_are_refused() -> None:
    state = encode(DESCRIPTION, 72, HISTORY, [])
    del state["recipe"]
    with pytest.raises(ResumeMismatch, match="no recipe"):
        decode(state)
    with pytest.raises(ResumeMismatch, match="a list"):
        decode([1, 2])

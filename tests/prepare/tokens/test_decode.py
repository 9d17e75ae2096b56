"""Ids back to text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.internals import load_decoder

from penstock.errors import Corrupt, NotFound


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vocabulary = {"<eod>": 0, "hello": 1, "world": 2}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<eod>"}
    added = [
        {"id": 0, "content": "<eod>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    content |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


def test_ids_become_text_with_special_tokens(folder: Path) -> None:
    assert load_decoder(folder)([1, 2, 0]) == "hello world <eod>"
    assert load_decoder(folder / "tokenizer.json")([2]) == "world"


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="tokenizer"):
        load_decoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(Corrupt, match="tokenizer"):
        load_decoder(tmp_path)


def test_an_id_that_the_tokenizer_lacks_is_shown(folder: Path) -> None:
    assert load_decoder(folder)([1, 99, 2, 7, 2**40]) == "hello⟨99⟩world⟨7⟩⟨1099511627776⟩"

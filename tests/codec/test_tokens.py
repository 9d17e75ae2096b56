"""Widths of tokens, and ids that fit them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.tokens import as_tokens, check_ids, dtype_for, token_bytes_for_id, token_bytes_for_vocab
from penstock.errors import ConfigError, TooLarge


def test_width_of_a_vocabulary_is_the_originals(golden: Path) -> None:
    table = json.loads((golden / "modalities" / "packed.json").read_text())["bytes_for_vocab_size"]
    assert len(table) > 10
    for vocab_size, token_bytes in table.items():
        if token_bytes is None:
            with pytest.raises(ConfigError):
                token_bytes_for_vocab(int(vocab_size))
        else:
            assert token_bytes_for_vocab(int(vocab_size)) == token_bytes


@given(st.integers(2, 1 << 32))
def test_width_of_a_vocabulary_is_the_formula(vocab_size: int) -> None:
    formula = math.ceil(math.log2(vocab_size) / 8)
    assert token_bytes_for_vocab(vocab_size) == {1: 1, 2: 2, 3: 4, 4: 4}[formula]
    assert vocab_size <= 1 << 8 * token_bytes_for_vocab(vocab_size)


def test_width_of_an_id() -> None:
    for limit, token_bytes in ((1 << 8, 1), (1 << 16, 2), (1 << 32, 4)):
        assert token_bytes_for_id(limit - 1) == token_bytes
    assert (token_bytes_for_id(0), token_bytes_for_id(256), token_bytes_for_id(65_536)) == (1, 2, 4)
    for wrong in (-1, 1 << 32):
        with pytest.raises(ConfigError):
            token_bytes_for_id(wrong)


def test_dtypes() -> None:
    assert [dtype_for(token_bytes).name for token_bytes in (1, 2, 4)] == ["uint8", "uint16", "uint32"]
    assert dtype_for(2).isnative
    assert dtype_for(2, ">") == np.dtype(">u2")
    for wrong in (0, 3, 8):
        with pytest.raises(ConfigError):
            dtype_for(wrong)


def test_tokens_are_rows_of_integers() -> None:
    assert as_tokens([1, 2]).tolist() == [1, 2]
    assert as_tokens([]).dtype == np.uint8
    array = np.array([1, 70_000], np.uint32)
    assert as_tokens(array) is array
    wrong: list[Any] = [[1.0], [[1]], "12", None, 5, [True], ["a"], [1 << 70]]
    for values in wrong:
        with pytest.raises(ConfigError):
            as_tokens(values)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int32])
def test_ids_are_checked(dtype: Any) -> None:
    tokens = np.array([3, 9, 4, 7], dtype)
    lengths = np.array([1, 0, 2, 1])
    assert check_ids(tokens, lengths, 10) == 9
    assert check_ids(tokens[:0], lengths[:0], 10) == -1
    with pytest.raises(TooLarge, match="document 7") as caught:
        check_ids(tokens, lengths, 9, first_doc=5, path="a")
    assert (caught.value.found, caught.value.path) == (9, "a")


def test_negative_ids_are_refused() -> None:
    with pytest.raises(TooLarge, match="document 0") as caught:
        check_ids(np.array([1, -1]), np.array([2]), 10)
    assert caught.value.found == -1


@pytest.mark.parametrize(
    ("limit", "hint"),
    [
        (256, "wider token_bytes"),
        (1 << 16, "wider token_bytes"),
        (1 << 31, "pbin with token_bytes=4"),
        (50_257, "Token"),
    ],
)
def test_the_hint_fits_the_limit(limit: int, hint: str) -> None:
    with pytest.raises(TooLarge, match=hint) as caught:
        check_ids(np.array([limit]), np.array([1]), limit)
    assert ("token_bytes" in str(caught.value)) == (hint != "Token")

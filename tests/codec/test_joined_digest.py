"""Document digests that join."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.joined_digest import (
    JoinedDigest,
    documents_digest_v2,
    is_joinable,
    join_digests,
)
from penstock.errors import ConfigError

P = (1 << 127) - 1
DOCS = st.lists(st.lists(st.integers(0, 255), max_size=6), max_size=8)


def digest_of(docs: list[list[int]], dtype: Any = np.uint32) -> str:
    tokens = np.array([token for doc in docs for token in doc], dtype)
    return documents_digest_v2(tokens, np.array([len(doc) for doc in docs], np.int64))


@given(DOCS, DOCS, DOCS)
def test_it_joins(first: list[list[int]], second: list[list[int]], third: list[list[int]]) -> None:
    a, b, c = map(digest_of, (first, second, third))
    assert join_digests([a, b, c]) == digest_of(first + second + third)
    assert join_digests([join_digests([a, b]), c]) == join_digests([a, join_digests([b, c])])


@given(DOCS, DOCS)
def test_it_tells_documents_and_their_order_apart(first: list[list[int]], second: list[list[int]]) -> None:
    assert (digest_of(first) == digest_of(second)) == (first == second)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, "<i4", ">u2"])
def test_widths_are_one(dtype: Any) -> None:
    assert digest_of([[1, 2], [], [3]], dtype) == digest_of([[1, 2], [], [3]])


def test_the_arithmetic_is_pinned() -> None:
    r = xxhash.xxh3_128_intdigest(b"penstock document digest 2") % P
    h = [xxhash.xxh3_128_intdigest(np.array(doc, "<u4").tobytes()) for doc in ([1, 2], [], [3])]
    assert digest_of([[1, 2], [], [3]]) == f"2:{(h[0] * r * r + h[1] * r + h[2]) % P:032x}:3"
    assert digest_of([[1, 2], [], [3]]) == "2:48bd3dfd0725ea4f963bd498d26807ba:3"
    assert digest_of([]) == join_digests([]) == "2:" + "0" * 32 + ":0"


def test_long_documents_among_short_ones_in_any_cut() -> None:
    rng = np.random.default_rng(5)
    lengths = np.array([3, 0, (1 << 15) + 1, 1 << 15, 7, (1 << 17) + 3, 0, 1], np.int64)
    tokens = rng.integers(0, 50_000, int(lengths.sum()), np.uint16)
    whole = documents_digest_v2(tokens, lengths)
    for cut in range(len(lengths) + 1):
        digest = JoinedDigest()
        at = int(lengths[:cut].sum())
        digest.update(tokens[:at], lengths[:cut])
        digest.update_digest(documents_digest_v2(tokens[at:], lengths[cut:]))
        assert digest.text() == whole
    single = [
        documents_digest_v2(tokens[e - n : e], np.array([n])) for n, e in zip(lengths, np.cumsum(lengths), strict=True)
    ]
    assert join_digests(single) == whole


@pytest.mark.parametrize(
    "text",
    [
        *("", "2::", "0" * 32, "2:" + "0" * 32, "2:" + "8" + "0" * 31 + ":1", "2:" + "0" * 31 + "A:1"),
        *("3:" + "0" * 32 + ":1", "2:" + "0" * 32 + ":-1", "2:" + "0" * 32 + ":01", "2:" + "0" * 32 + ":" + "9" * 99),
        "2:" + "0" * 32 + ":1\n",
    ],
)
def test_what_is_no_digest(text: str) -> None:
    assert not is_joinable(text)
    with pytest.raises(ConfigError, match="not a version 2 document digest"):
        join_digests([text])


@pytest.mark.parametrize("lengths", [[1], [4], [-1, 4], []])
def test_lengths_that_do_not_fill_the_tokens(lengths: list[int]) -> None:
    with pytest.raises(ConfigError, match=re.escape("the document lengths don't add up to the number of tokens")):
        documents_digest_v2(np.arange(3, dtype=np.uint16), np.array(lengths, np.int64))

"""What token formats share for checking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.formats._side_checks import check_block_digests
from penstock.formats.tokens.checks import (
    TokenRun,
    check_eos,
    check_vocabulary,
    sampled_ranges,
    stored_too_narrow,
    stored_too_wide,
)
from penstock.formats.tokens.common import TokenFile
from penstock.store.memory import MemoryStore
from penstock.testing import CountingStore
from penstock.types import Depth


def run_of(ids: Any, dtype: str = "<u2") -> TokenRun:
    data = b"header" + np.array(ids, dtype).tobytes()
    return TokenRun("x", "a", TokenFile(MemoryStore({"a": data}), "a", 6, len(ids), np.dtype(dtype)))


@pytest.mark.parametrize("num_tokens", [0, 1, 5000, 1 << 18, (1 << 18) + 1, 10**7, 10**11])
def test_ranges(num_tokens: int) -> None:
    sample = list(sampled_ranges(num_tokens, "sample"))
    assert all(0 <= start < stop <= num_tokens for start, stop in sample)
    assert sum(stop - start for start, stop in sample) <= 1 << 18
    if num_tokens:
        assert (sample[0][0], sample[-1][1]) == (0, num_tokens)
    if num_tokens <= 10**7:
        full = list(sampled_ranges(num_tokens, "full"))
        assert [0, *(stop for _, stop in full)] == [*(start for start, _ in full), num_tokens]


def test_vocabulary() -> None:
    ids = np.zeros(5_000_000, np.int64)
    ids[[3, 4_500_000]] = 500, 600
    run = run_of(ids)
    assert [(one.code, one.offset_bytes) for one in check_vocabulary(run, 500, "full")] == [
        ("x.token-range", 12),
        ("x.token-range", 6 + 2 * 4_500_000),
    ]
    assert list(check_vocabulary(run, 601, "full")) == []
    assert len(list(check_vocabulary(run, 500, "sample"))) == 1
    found = list(check_vocabulary(run_of([9] * 1000), 9, "full"))
    assert "980 more" in str(found[-1].found)


@pytest.mark.parametrize("depth", ["sample", "full"])
def test_eos(depth: Depth) -> None:
    run = run_of([1, 7, 2, 7, 3])
    found = list(check_eos(run, np.array([0, 2, 2, 4, 5]), 7, depth))
    assert [(one.code, one.offset_bytes) for one in found] == [("x.no-eos", 10), ("x.no-eos", 14)]
    assert list(check_eos(run, np.array([0, 2, 4]), 7, depth)) == []
    assert list(check_eos(run_of([]), np.array([0]), 7, depth)) == []


def test_eos_of_many_documents() -> None:
    ids = np.full(20_000, 7)
    ids[11_111] = 3
    starts = np.arange(20_001)
    assert len(list(check_eos(run_of(ids), starts, 7, "full"))) == 1
    ids[-1] = 3
    assert [one.offset_bytes for one in check_eos(run_of(ids), starts, 7, "sample")] == [6 + 2 * 19_999]


def test_block_digests() -> None:
    store = MemoryStore({"a": b"abc", "empty": b""})
    for one in (store, CountingStore(store)):
        [finding] = check_block_digests(one, "a", "x", ("00",), "restore it")
        assert (finding.code, finding.offset_bytes, finding.expected) == ("x.digest", 0, "00")
        [finding] = check_block_digests(one, "a", "x", (), "restore it")
        assert finding.expected is None
        assert list(check_block_digests(one, "empty", "x", (), "restore it")) == []


def test_widths() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 100) * 2
    words = np.minimum(rng.zipf(1.2, 10_000), 50_000)
    as_bytes, as_halves = words.astype("<u2").view(np.uint8), words.astype("<u4").view(np.uint16)
    assert stored_too_narrow(as_bytes, lengths)
    assert stored_too_narrow(as_halves, lengths)
    assert not stored_too_narrow(as_bytes, lengths + 1)
    assert not stored_too_narrow(words.astype(np.uint16), lengths)
    assert not stored_too_narrow(as_bytes[:50], lengths)
    assert stored_too_wide(words.astype("<u2").view("<u4"))
    assert not stored_too_wide(words.astype(np.uint32))
    assert not stored_too_wide(rng.integers(0, 1 << 32, 10_000, np.uint32))
    assert not stored_too_wide((words + (1 << 31)).astype(np.uint32))
    assert not stored_too_narrow(rng.integers(0, 256, 10_000).astype(np.uint8), lengths)

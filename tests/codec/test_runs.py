"""Runs of unequal lengths are copied where they belong, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec import runs
from penstock.codec.runs import argsort_small, copy_runs


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["u1", "u2", "u4"]))
    lengths = np.array(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 50]), max_size=80)), np.int64)
    source = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 255, 200).astype(dtype)
    starts = np.array([data.draw(st.integers(0, 200 - length)) for length in lengths.tolist()], np.int64)
    gaps = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths))), np.int64)
    places = np.cumsum(lengths + gaps) - lengths
    target = np.full(int((lengths + gaps).sum()), 255, dtype)
    expected = target.copy()
    for start, length, place in zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True):
        expected[place : place + length] = source[start : start + length]
    source.flags.writeable = False
    copy_runs(source, starts, lengths, target, places)
    np.testing.assert_array_equal(target, expected)


def test_many_rows_and_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_ROWS", 64)
    monkeypatch.setattr(runs, "_STEP_BYTES", 512)
    rng = np.random.default_rng(3)
    lengths = rng.choice([1, 7, 300], 1000)
    stops = np.cumsum(lengths)
    source = rng.integers(0, 1 << 16, stops[-1]).astype("u2")
    order = rng.permutation(1000)
    target = np.empty_like(source)
    copy_runs(source, (stops - lengths)[order], lengths[order], target, np.cumsum(lengths[order]) - lengths[order])
    parts = np.split(source, stops[:-1])
    np.testing.assert_array_equal(target, np.concatenate([parts[row] for row in order]))


@pytest.mark.parametrize("top", [10, 1 << 16, 1 << 40])
def test_order_is_stable(top: int) -> None:
    values = np.random.default_rng(1).integers(0, top, 500)
    np.testing.assert_array_equal(argsort_small(values), np.argsort(values, kind="stable"))
    assert len(argsort_small(np.empty(0, np.int64))) == 0

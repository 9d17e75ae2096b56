"""When two values are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.internals import stack

from penstock.testing.equality import row_matches, same, same_samples

NAN = float("nan")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, np.int64(1)),
        (NAN, NAN),
        (np.array([1, NAN]), np.array([1, NAN])),
        ({"a": [1, {"b": np.zeros(2)}]}, {"a": [1, {"b": np.zeros(2)}]}),
        ([1, 2], (1, 2)),
        (None, None),
        (np.empty(0, np.uint8), np.empty(0, np.uint8)),
    ],
)
def test_same(left: Any, right: Any) -> None:
    assert same(left, right)
    assert same(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (b"a", "a"),
        (0.0, NAN),
        (np.zeros(2, np.uint8), np.zeros(2, np.uint16)),
        (np.zeros((1, 2)), np.zeros(2)),
        (np.zeros(2), [0.0, 0.0]),
        (np.array([1, 2]), np.array([1, 3])),
        ({"a": 1}, {"a": 1, "b": None}),
        ([1], [1, 1]),
        (None, 0),
    ],
)
def test_not_same(left: Any, right: Any) -> None:
    assert not same(left, right)
    assert not same(right, left)


def test_samples_one_by_one() -> None:
    assert same_samples([{"a": 1}], [{"a": 1}])
    assert not same_samples([{"a": 1}], [{"a": 1}, {"a": 1}])
    assert not same_samples([{"a": 1}], [{"a": 2}])


def test_rows() -> None:
    samples = [{"a": 1, "x": np.zeros(2)}, {"a": 2, "b": "t", "x": np.ones(2)}]
    batch = stack(samples)
    assert all(row_matches(batch, row, sample) for row, sample in enumerate(samples))
    assert not row_matches(batch, 0, samples[1])
    assert not row_matches(batch, 0, {**samples[0], "more": 1})

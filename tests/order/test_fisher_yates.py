"""Vectorised Fisher–Yates walks equal the step-by-step ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.fisher_yates import swap_walk


def walk_slowly(n: int, own: list[int], targets: list[int]) -> list[int]:
    values = list(range(n))
    for i, j in zip(own, targets, strict=True):
        values[i], values[j] = values[j], values[i]
    return values


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), descending=st.booleans())
def test_equals_the_slow_walk(n: int, seed: int, descending: bool) -> None:
    own = np.arange(n)[::-1] if descending else np.arange(n)
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, own + 1) if descending else rng.integers(own, n)
    values = np.arange(n)
    swap_walk(values, int(own[0]), targets, descending=descending)
    assert values.tolist() == walk_slowly(n, own.tolist(), targets.tolist())


@pytest.mark.parametrize("descending", [False, True])
def test_every_step_may_want_the_same_place(descending: bool) -> None:
    n = 500
    own = np.arange(n)[::-1] if descending else np.arange(n)
    targets = np.full(n, 0 if descending else n - 1)
    values = np.arange(n)
    swap_walk(values, int(own[0]), targets, descending=descending)
    assert values.tolist() == walk_slowly(n, own.tolist(), targets.tolist())


def test_pieces_of_a_walk_give_the_whole() -> None:
    n = 2000
    targets = np.random.default_rng(3).integers(np.arange(n), n)
    whole, pieces = np.arange(n), np.arange(n)
    swap_walk(whole, 0, targets)
    for start in range(0, n, 333):
        swap_walk(pieces, start, targets[start : start + 333])
    assert np.array_equal(whole, pieces)


def test_targets_may_lie_behind_the_walk() -> None:
    n = 3000
    targets = np.random.default_rng(4).integers(0, n, n)
    for descending in (False, True):
        own = np.arange(n)[::-1] if descending else np.arange(n)
        values = np.arange(n)
        swap_walk(values, int(own[0]), targets, descending=descending)
        assert values.tolist() == walk_slowly(n, own.tolist(), targets.tolist())

"""Weights → counts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError
from penstock.load.plan import plan
from penstock.mix import block_counts
from penstock.mix.shares import exactly, requested_shares
from penstock.testing import MemorySource


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ({"only": 3}, {"only": 1}),
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 3, "b": 5}, {"a": 3, "b": 5}),
        ({"a": 1, "b": 1, "c": 1}, {"a": 86, "b": 85, "c": 85}),
        ({"books": 0.3, "web": 0.7}, {"books": 77, "web": 179}),
        ({"a": 0.1, "b": 0.6, "c": 0.3}, {"a": 51, "b": 307, "c": 154}),
        ({"a": Fraction(1, 3), "b": Fraction(2, 3)}, {"a": 43, "b": 85}),
        ({"a": np.float32(0.25), "b": np.int64(1)}, {"a": 51, "b": 205}),
        ({"a": 1e300, "b": 1e300}, {"a": 1, "b": 1}),
        ({"a": 1, "b": 65535}, {"a": 1, "b": 65535}),
    ],
)
def test_counts(weights: dict[str, Any], counts: dict[str, int]) -> None:
    assert block_counts(weights) == counts


def test_ties_go_to_the_earlier_name() -> None:
    counts = block_counts({"b": 0.1, "a": 0.1, "c": 0.1})
    assert counts == {"b": 86, "a": 85, "c": 85}
    # 51.2, 307.2 and 153.6 of 512 are clear; 0.1 and 0.6 of 16 would both be .6 over, as decimals but not as floats.
    assert exactly("weight", 0.1) == Fraction(1, 10)


def test_where_a_block_can_not_be_long_enough_the_nearest_count_is_taken() -> None:
    # 2.7 of 65,536 places: off by more than 1 %, and said so by the count.
    weights = {"tiny": 2.7, "rest": 65536 - 2.7}
    assert block_counts(weights) == {"tiny": 3, "rest": 65533}


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"a": 0},
        {"a": -1, "b": 2},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": "1"},
        {"a": True},
        {"a": None},
        {"a": 1, "b": 1e9},
        {f"{i}": 1 for i in range(70_000)},
    ],
)
def test_weights_that_are_none(weights: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        block_counts(weights)


def test_a_child_without_a_place_is_named() -> None:
    with pytest.raises(ConfigError, match="'speck'"):
        block_counts({"speck": 1e-9, "rest": 1.0})


def slow_counts(weights: list[Fraction]) -> list[int]:
    """The rule as it is written, one step after another."""
    total = sum(weights)
    counts: list[int] = []
    for log2 in range(17):
        exact = [weight / total * 2**log2 for weight in weights]
        counts = [int(value) for value in exact]
        while sum(counts) < 2**log2:
            remainders = [value - count for value, count in zip(exact, counts, strict=True)]
            counts[remainders.index(max(remainders))] += 1
        if all(abs(count - value) <= value / 100 for count, value in zip(counts, exact, strict=True)):
            break
    return counts


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_counts_follow_the_rule(weights: list[int]) -> None:
    named = {str(i): weight for i, weight in enumerate(weights)}
    assert list(block_counts(named).values()) == slow_counts([Fraction(weight) for weight in weights])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 1.0) | st.floats(1e300, 1.7e308), min_size=2, max_size=6))
def test_shares_are_within_the_documented_bound(weights: list[float]) -> None:
    """1 % of the share or 1/65,536 of all samples, whichever is larger."""
    named = {f"child {i}": weight for i, weight in enumerate(weights)}
    total = sum(map(Fraction, map(repr, weights)))
    requested = [Fraction(repr(weight)) / total for weight in weights]
    assert list(requested_shares(named).values()) == [float(share) for share in requested]
    try:
        counts = block_counts(named)
    except ConfigError:
        assert min(requested) < Fraction(1, 65536)
        return
    places = sum(counts.values())
    for share, count in zip(requested, counts.values(), strict=True):
        assert abs(Fraction(count, places) - share) <= max(share / 100, Fraction(1, 65536))


def test_a_blend_whose_shares_are_off_says_by_how_much() -> None:
    children = {"big": MemorySource([{"n": 1}] * 4), "small": MemorySource([{"n": 2}] * 4)}
    mix = ps.Blend(children, weights={"big": 1, "small": 1e-5}, seed=1)
    # 0.655 of 65,536 places are rounded to one, which is 53 % more.
    [warning] = [one for one in plan(mix, global_batch=8, steps=1)["warnings"] if "instead of" in one]
    assert warning.startswith("small: the share is 0.0015% instead of 0.0010% (+53%): shares are multiples of 1/65,536")
    huge = ps.Blend(children, weights={"big": 1.5e308, "small": 1.5e308}, seed=1)
    assert "requested 50.0000%" in str(huge)
    assert not [one for one in plan(huge, global_batch=8, steps=1)["warnings"] if "instead of" in one]

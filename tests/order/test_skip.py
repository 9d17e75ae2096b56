"""`Skip`: positions left out of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order import Sequential, Shuffle, Skip
from penstock.order.ordered import OrderedStream
from penstock.testing.memory import MemorySource
from penstock.testing.streams import StreamLaws
from penstock.types import Sample

SOURCE = MemorySource([{"n": n} for n in range(37)])


def stream(lanes: int = 1) -> OrderedStream[Sample]:
    return Shuffle(SOURCE, 5, lanes=lanes)


class TestSkip(StreamLaws):
    def make(self) -> Skip[Sample]:
        return Skip(stream(), [(100, 120), (3, 4), (110, 500)])


class TestSkipNothing(StreamLaws):
    def make(self) -> Skip[Sample]:
        return Skip(stream(), [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8))
def test_what_is_left_is_in_order(ranges: list[tuple[int, int]]) -> None:
    pairs = [(start, start + count) for start, count in ranges]
    skip = Skip(stream(), pairs)
    left_out = {position for start, stop in pairs for position in range(start, stop)}
    expected = [position for position in range(200) if position not in left_out][:80]
    assert skip.inner(np.arange(80)).tolist() == expected
    assert [skip.inner_one(position) for position in range(80)] == expected
    reached = {inner: outer for outer, inner in enumerate(expected)}
    assert [skip.position_of(position) for position in range(expected[-1])] == [
        reached.get(position) for position in range(expected[-1])
    ]


def test_every_way_to_name_positions() -> None:
    expected = Skip(stream(), [(4, 8), (10, 11)])
    for ranges in ([range(4, 8), (10, 11)], [(5, 8), (4, 6), (10, 11), (3, 3)], np.array([10, 4, 5, 6, 7, 7])):
        skip = Skip(stream(), ranges)
        assert skip.ranges == expected.ranges == ((4, 8), (10, 11))
        assert skip.fingerprint == expected.fingerprint
    assert Skip(stream(), range(4, 8)).ranges == ((4, 8),)


@pytest.mark.parametrize(
    "wrong", [[(3, 2)], [(-1, 2)], [range(0, 10, 2)], [(1, 2, 3)], [5], [(0.5, 2)], [(0, 1 << 70)]]
)
def test_ranges_that_are_none(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        Skip(stream(), wrong)


def test_lanes_stay_where_whole_rounds_are_left_out() -> None:
    inner = Sequential(SOURCE, lanes=4)
    skip = Skip(inner, [(6, 14), (20, 24)])
    assert skip.lanes == 4
    positions = np.arange(200)
    assert np.array_equal(skip.inner(positions) % 4, positions % 4)
    assert Skip(inner, [(6, 13)]).lanes == 1
    assert Skip(inner, [(6, 13), (20, 21)]).lanes == 1


def test_locate_speaks_of_outer_positions() -> None:
    skip = Skip(stream(), [(10, 20)])
    at = skip.locate(15)
    assert at.position == 15
    assert at.index == stream().locate(25).index


def test_stand_ins_are_never_left_out() -> None:
    skip = Skip(stream(), [(0, 30)])
    # Positions 30 to 36 are what is left of the epoch, the first 7 from outside.
    others = [skip.substitute(2, attempt) for attempt in range(6)]
    assert sorted([2, *others]) == list(range(7))
    with pytest.raises(ConfigError):
        skip.substitute(2, 6)


def test_horizon_holds_what_came_before() -> None:
    skip = Skip(stream(), [(10, 20), (50, 60)])
    assert skip.horizon(0) == ({}, {"stream": 0})
    assert skip.horizon(10) == ({}, {"stream": 10})
    assert skip.horizon(11) == ({"kind": "skip", "ranges": [[10, 20]]}, {"stream": 21})
    assert skip.horizon(40)[0] == {"kind": "skip", "ranges": [[10, 20]]}
    assert skip.horizon(41)[0] == {"kind": "skip", "ranges": [[10, 20], [50, 60]]}


def test_it_resolves_ahead() -> None:
    skip = Skip(stream(), [(5, 10)])
    assert skip.resolve(np.arange(8)).tolist() == stream().resolve(skip.inner(np.arange(8))).tolist()


def test_skips_of_skips() -> None:
    skip = Skip(Skip(stream(), [(5, 10)]), [(5, 10)])
    assert [skip.inner_one(position) for position in (4, 5)] == [4, 10]
    assert skip[5] == stream()[15]

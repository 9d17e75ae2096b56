"""Positions fall into lanes, and lanes cover the tape, for every size and number of lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.lanes import check_lanes, lane_place_one, lane_places, positions_at, tape_starts

SIZES = st.integers(1, 60)
LANES = st.integers(1, 70)


@settings(max_examples=80, deadline=None)
@given(SIZES, LANES, st.one_of(st.integers(0, 4), st.integers(0, 10**9)))
def test_lanes_cover_the_tape_of_an_epoch(size: int, lanes: int, epoch: int) -> None:
    positions = np.arange(epoch * size, (epoch + 1) * size)
    starts = tape_starts(epoch, size, lanes)
    counts = np.bincount(positions % lanes, minlength=lanes)
    assert starts.tolist() == np.cumsum([0, *counts]).tolist()
    at = lane_places(positions, size, lanes)
    assert np.array_equal(at.lane, positions % lanes)
    assert np.array_equal(at.start, starts[at.lane])
    assert np.array_equal(at.size, counts[at.lane])
    assert sorted((at.start + at.place).tolist()) == list(range(size))
    assert np.array_equal(positions_at(at.lane, at.place, epoch, size, lanes), positions)
    one = [lane_place_one(position, size, lanes) for position in positions.tolist()]
    assert one == list(zip(at.start.tolist(), at.place.tolist(), at.size.tolist(), at.lane.tolist(), strict=True))


@settings(max_examples=20, deadline=None)
@given(SIZES, LANES)
def test_a_lane_walks_its_part_in_order(size: int, lanes: int) -> None:
    positions = np.arange(3 * size)
    at = lane_places(positions, size, lanes)
    for lane in range(min(lanes, size)):
        mine = (positions % lanes == lane) & (positions < size)
        assert at.place[mine].tolist() == list(range(int(mine.sum())))


def test_there_is_at_least_one_lane() -> None:
    with pytest.raises(ConfigError):
        check_lanes(0)

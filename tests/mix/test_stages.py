"""`Stages`: one stream after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.mix import Blend, Stages
from penstock.order import Sequential, Shuffle
from penstock.testing.memory import MemorySource
from penstock.testing.streams import StreamLaws


def numbers(length: int, first: int = 0) -> MemorySource:
    return MemorySource([{"n": first + i} for i in range(length)])


def stream(first: int = 0, lanes: int = 1, seed: int = 1) -> Any:
    return Shuffle(numbers(37, first), seed, lanes=lanes)


class TestThree(StreamLaws):
    def make(self) -> Stages:
        return Stages([(40, stream()), (1000, stream(100)), (None, stream(200))])


class TestLanes(StreamLaws):
    def make(self) -> Stages:
        blend = Blend({"a": stream(lanes=4), "b": stream(100, lanes=4)}, {"a": 1, "b": 3}, 2)
        return Stages([(40, blend), (None, stream(200, lanes=4))])


class TestOne(StreamLaws):
    def make(self) -> Stages:
        return Stages([(None, stream())])


def test_each_stage_is_its_stream_from_the_beginning() -> None:
    parts = [stream(), stream(100), stream(200)]
    stages = Stages([(40, parts[0]), (25, parts[1]), (None, parts[2])])
    found = stages.get_batch(range(100))["n"].tolist()
    expected = [
        *parts[0].get_batch(range(40))["n"].tolist(),
        *parts[1].get_batch(range(25))["n"].tolist(),
        *parts[2].get_batch(range(35))["n"].tolist(),
    ]
    assert found == expected
    assert [stages[position]["n"] for position in range(100)] == expected
    assert stages.get_resolved(stages.resolve(np.arange(100)))["n"].tolist() == expected
    assert stages.borders == (40, 65)
    assert [stages.locate(position).path for position in (39, 40, 64, 65, 10**12)] == [
        ("0",),
        ("1",),
        ("1",),
        ("2",),
        ("2",),
    ]
    assert stages.locate(65).position == 65
    assert [stages.position_of(name, 24) for name in "012"] == [24, 64, 89]
    assert [stages.position_of(name, 40) for name in "012"] == [None, None, 105]


def test_stand_ins_stay_in_their_stage() -> None:
    stages = Stages([(10, stream()), (None, stream(100))])
    others = [stages.substitute(3, attempt) for attempt in range(9)]
    assert sorted([3, *others]) == list(range(10))
    with pytest.raises(ConfigError):
        stages.substitute(3, 9)
    assert stages.substitute(500, 0) >= 10


def test_the_horizon_knows_nothing_of_what_comes_later() -> None:
    stages = Stages([(40, stream()), (25, stream(100)), (None, stream(200))])
    assert stages.horizon(40) == ({}, {"0": 40})
    own, reached = stages.horizon(66)
    assert (own["lengths"], reached) == ([40, 25], {"0": 40, "1": 25, "2": 1})


def test_open_seeds_are_filled() -> None:
    def blend(seed: int) -> Any:
        stages = Stages([(10, Shuffle(numbers(9))), (None, Shuffle(numbers(9)))])
        return Blend({"a": stages}, {"a": 1}, seed).children()["a"]

    first, second = blend(1).children().values()
    assert first.fingerprint != second.fingerprint
    assert blend(1).fingerprint != blend(2).fingerprint
    assert blend(1).borders == (10,)


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [(10, stream())],
        [(None, stream()), (None, stream())],
        [(0, stream()), (None, stream())],
        [(-4, stream()), (None, stream())],
        [(10, numbers(9)), (None, stream())],
        [(10, stream(lanes=2)), (None, stream(lanes=3))],
        [(11, stream(lanes=2)), (None, stream(lanes=2))],
        [(1 << 63, stream()), (None, stream())],
    ],
)
def test_stages_that_do_not_work(stages: Any) -> None:
    with pytest.raises(ConfigError):
        Stages(stages)


def test_the_nearest_lengths_are_named() -> None:
    with pytest.raises(ConfigError, match="96 or 104"):
        Stages([(100, stream(lanes=8)), (None, stream(lanes=8))])


def test_the_tree_shows_where_stages_begin() -> None:
    text = str(Stages([(4000, stream()), (None, Sequential(numbers(4)))]))
    assert "0 ([0, 4,000)): Shuffle" in text
    assert "1 ([4,000, …)): Sequential" in text

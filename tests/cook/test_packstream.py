from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._kinds import LaneStream, is_lane_stream
from penstock.errors import ConfigError
from penstock.testing import MemorySource


@pytest.fixture(scope="module")
def fns() -> Iterator[Any]:
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield importlib.import_module("lane_functions")
    sys.path.remove(folder)


def stream(lanes: int = 4, count: int = 100) -> Any:
    source = MemorySource([{"id": i, "length": 1 + i * 7 % 11} for i in range(count)])
    return ps.Shuffle(source, seed=3, lanes=lanes)


def test_a_window_gives_groups_of_its_own_samples(fns: Any) -> None:
    packed = ps.PackStream(stream(), 10, fns.first_fit, fns.join)
    assert isinstance(packed, LaneStream)
    assert is_lane_stream(packed)
    for lane in range(4):
        for window in (0, 3):
            inputs = packed.samples_of(lane, window)
            assert inputs == [packed.stream[lane + 4 * (window * 10 + place)] for place in range(10)]
            outputs = list(packed.outputs(lane, window))
            assert sorted(i for one in outputs for i in one["ids"]) == sorted(one["id"] for one in inputs)
            assert all(one["length"] <= 12 for one in outputs)
            assert outputs == list(packed.outputs(lane, window))


def test_groups_may_hold_the_samples_themselves(fns: Any) -> None:
    def halves(samples: list[Any]) -> list[list[Any]]:
        return [samples[:5], samples[5:]]

    packed = ps.PackStream(stream(), 10, halves, fns.join)
    assert [len(one["ids"]) for one in packed.outputs(0, 0)] == [5, 5]


def test_filters_and_generators(fns: Any) -> None:
    kept = ps.PackStream(stream(), 1, merge=fns.odd)
    many = ps.PackStream(stream(), 1, merge=fns.copies)
    for window in range(20):
        (sample,) = kept.samples_of(1, window)
        assert list(kept.outputs(1, window)) == ([sample] if sample["id"] % 2 else [])
        assert [one["copy"] for one in many.outputs(1, window)] == list(range(sample["id"] % 3))


def test_what_select_gets_wrong_is_said(fns: Any) -> None:
    def run(select: Any, **options: Any) -> list[Any]:
        return list(ps.PackStream(stream(), 10, select, fns.join, name="x", **options).outputs(0, 0))

    with pytest.raises(ConfigError, match="omits samples: found 8 from a window of 10"):
        run(lambda samples: [[0, 1]])
    assert len(run(lambda samples: [[0, 1]], leftover="drop")) == 1
    with pytest.raises(ConfigError, match="into two groups"):
        run(lambda samples: [[0], [0]])
    with pytest.raises(ConfigError, match="outside the window"):
        run(lambda samples: [[10]])
    with pytest.raises(ConfigError, match="needs merge="):
        list(ps.PackStream(stream(), 10, fns.first_fit).outputs(0, 0))


def test_arguments(fns: Any) -> None:
    with pytest.raises(ConfigError, match="endless stream"):
        ps.PackStream(stream().source, 10)
    with pytest.raises(ConfigError, match="at least one"):
        ps.PackStream(stream(), 0)
    with pytest.raises(ConfigError, match="unknown leftover"):
        ps.PackStream(stream(), 1, leftover="keep")  # pyright: ignore
    one = ps.PackStream(stream(), 10, fns.first_fit, fns.join)
    other = ps.PackStream(stream(), 11, fns.first_fit, fns.join)
    assert one.fingerprint != other.fingerprint
    assert one.recipe()["fn"] == "lane_functions:first_fit lane_functions:join"
    assert "PackStream  window=10" in str(one)

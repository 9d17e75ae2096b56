from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import MemorySource
from penstock.testing.streams import StreamLaws

COSTS = np.random.default_rng(1).integers(1, 1000, 500)


def shuffled(**options: Any) -> Any:
    return ps.Shuffle(MemorySource([{"id": i, "cost": int(cost)} for i, cost in enumerate(COSTS)]), seed=5, **options)


class TestLaws(StreamLaws):
    def make(self) -> Any:
        return ps.Balance(shuffled(), 4, COSTS, steps=8)


def test_each_block_holds_what_it_held() -> None:
    plain, balanced = shuffled(), ps.Balance(shuffled(), 4, COSTS, steps=16)
    for block in (0, 3, 7, 20):
        positions = np.arange(block * 64, block * 64 + 64)
        found = balanced.get_batch(positions)["id"].tolist()
        expected = plain.get_batch(positions)["id"].tolist()
        assert sorted(found) == sorted(expected)
        assert found != expected


def test_the_ranks_of_a_step_cost_about_the_same() -> None:
    def spread(stream: Any) -> float:
        """Mean over steps of the dearest rank's cost to the mean rank's: what a step waits for."""
        rows = np.array([stream[position]["cost"] for position in range(8 * 200)]).reshape(200, 8)
        return float((rows.max(axis=1) / rows.mean(axis=1)).mean())

    assert spread(ps.Balance(shuffled(), 8, COSTS, steps=60)) < 1.1
    assert spread(shuffled()) > 1.5


def test_a_run_goes_on_in_another_world() -> None:
    stream = ps.Balance(shuffled(), 4, COSTS)
    first = ps.Loader(stream, 8, rank=0, world=1, workers=0)
    expected = [batch["id"].tolist() for batch in islice(ps.Loader(stream, 8, rank=0, world=1, workers=0), 6)]
    assert [batch["id"].tolist() for batch in islice(first, 3)] == expected[:3]
    parts = []
    for rank in range(2):
        ld = ps.Loader(stream, 8, rank=rank, world=2, workers=1)
        ld.load_state_dict(first.state_dict())
        parts.append([batch["id"].tolist() for batch in islice(ld, 3)])
    joined = [[one for pair in zip(*step, strict=True) for one in pair] for step in zip(*parts, strict=True)]
    assert joined == expected[3:]


def test_planned_packs_bring_their_costs() -> None:
    source = MemorySource([{"id": i} for i in range(200)])
    packs = ps.PackByLength(source, 100, 1 + np.arange(200) % 90)
    stream = ps.Balance(ps.Shuffle(packs, seed=1), 2, steps=4)
    assert stream.fingerprint == pickle.loads(pickle.dumps(stream)).fingerprint
    assert stream[0] == packs[stream.locate(0).index]


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="only an order over one source"):
        ps.Balance(ps.Map(shuffled(), dict, name="x"), 4, COSTS)  # pyright: ignore
    with pytest.raises(ConfigError, match="must have one lane"):
        ps.Balance(shuffled(lanes=4), 4, COSTS)
    with pytest.raises(ConfigError, match="world × steps is out of range"):
        ps.Balance(shuffled(), 0, COSTS)
    with pytest.raises(ConfigError, match="the costs don't match"):
        ps.Balance(shuffled(), 4, COSTS[1:])
    with pytest.raises(ConfigError, match="found none"):
        ps.Balance(shuffled(), 4)

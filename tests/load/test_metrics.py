from __future__ import annotations

import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tests.internals import Metrics

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import MemorySource, MemoryTokens


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return sample


def samples(count: int, width: int = 8) -> MemorySource:
    return MemorySource([{"value": np.full(width, i, np.int32)} for i in range(count)])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_samples_and_bytes_are_counted(workers: int) -> None:
    ld = ps.Loader(ps.Shuffle(samples(10), seed=1), 8, rank=1, world=2, workers=workers)
    list(islice(ld, 5))
    found = ld.metrics()
    assert (found.step, found.consumed, found.batches, found.samples) == (5, 40, 5, 20)
    assert found.size_bytes == 20 * 8 * 4
    assert found.workers == workers
    assert set(found.stages) == {"order", "read", "collate"}
    assert found.waiting_seconds > 0


def test_the_stage_that_starves_is_named() -> None:
    ld = ps.Loader(ps.Map(ps.Sequential(samples(40)), slow), 8, rank=0, world=1, workers=1)
    list(islice(ld, 4))
    found = ld.metrics()
    name = f"Map {slow.__module__}:slow"
    assert found.stages[name] >= 4 * 8 * 0.002
    assert found.profile().endswith(f"The workers spend most of their time on: {name}")
    assert "idle" in found.profile()


def test_a_slow_trainer_does_not_wait() -> None:
    ld = ps.Loader(ps.Sequential(samples(400)), 8, rank=0, world=1, workers=1)
    for _ in islice(ld, 10):
        time.sleep(0.01)
    found = ld.metrics()
    assert found.training_seconds >= 0.09
    assert found.ready <= 2
    assert ps.Loader(ps.Sequential(samples(4)), 4, rank=0, world=1).metrics().profile().startswith("0 batches")


def test_sources_say_how_far_they_were_read() -> None:
    tokens = ps.Chunk(4)(MemoryTokens([list(range(40))]))
    mixed = ps.Blend(
        {"a": ps.Shuffle(tokens, seed=1), "b": ps.Shuffle(ps.Chunk(4)(MemoryTokens([list(range(80))])), seed=2)},
        weights={"a": 0.25, "b": 0.75},
        seed=3,
    )
    ld = ps.Loader(mixed, 8, rank=0, world=1, workers=0)
    list(islice(ld, 10))
    sources = ld.metrics().sources
    assert set(sources) == {"a", "b"}
    taken = [mixed.locate(position).path[0] for position in range(80)]
    for name, length in (("a", 10), ("b", 20)):
        assert sources[name].samples == taken.count(name)
        assert sources[name].epochs == taken.count(name) / length
        assert sources[name].tokens == taken.count(name) * 4


def test_the_callback_comes_at_whole_steps() -> None:
    seen: list[Metrics] = []
    stream = ps.Sequential(samples(40))
    ld = ps.Loader(stream, 8, rank=0, world=1, micro_batch=2, workers=0, on_metrics=seen.append, metrics_every=3)
    list(islice(ld, 4 * 7))
    assert [one.step for one in seen] == [3, 6]
    with pytest.raises(ConfigError, match="metrics_every"):
        ps.Loader(stream, 8, rank=0, world=1, metrics_every=0)

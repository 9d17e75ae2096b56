"""`Shuffle`: which order it takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.order import GlobalOrder, Sequential, Shuffle, Take
from penstock.order.blocks import BlockOrder
from penstock.testing.memory import MemorySource

SAMPLES = [{"n": n} for n in range(50)]


class Remote(MemorySource):
    preferred_mode = "blocks"

    @property
    def block_starts(self) -> Any:
        return np.arange(0, 51, 5)


def test_global_is_the_default() -> None:
    stream = Shuffle(MemorySource(SAMPLES), 7)
    assert stream.order(np.arange(50)).tolist() == GlobalOrder(50, 7).order(np.arange(50)).tolist()
    assert stream.version == "feistel-1"


def test_a_source_may_prefer_blocks() -> None:
    expected = BlockOrder(np.arange(0, 51, 5), 7, lanes=2).order(np.arange(120))
    assert Shuffle(Remote(SAMPLES), 7, lanes=2).order(np.arange(120)).tolist() == expected.tolist()
    assert Shuffle(Remote(SAMPLES), 7, mode="global").version == "feistel-1"


def test_epochs_hold_every_sample_once() -> None:
    stream = Shuffle(MemorySource(SAMPLES), 1)
    for epoch in range(3):
        seen = stream.get_batch(np.arange(epoch * 50, epoch * 50 + 50))["n"]
        assert sorted(seen.tolist()) == list(range(50))


def test_an_empty_source_is_refused() -> None:
    for mode in ("global", "blocks"):
        with pytest.raises(ConfigError, match="empty"):
            Shuffle(MemorySource([]), 7, mode=mode)


@pytest.mark.parametrize("order", [Shuffle, Sequential, lambda stream: Take(stream, 0, 1)])
def test_a_stream_is_no_source(order: Any) -> None:
    with pytest.raises(ConfigError, match="a stream is endless and already has an order"):
        order(Shuffle(MemorySource([{"n": 0}]), 1))


def test_options_that_can_not_work() -> None:
    unknown: Any = "local"
    with pytest.raises(ConfigError, match="mode"):
        Shuffle(MemorySource(SAMPLES), 7, mode=unknown)
    with pytest.raises(ConfigError, match="lane"):
        Shuffle(MemorySource(SAMPLES), 7, lanes=0)
    fraction: Any = 0.5
    with pytest.raises(TypeError):
        Shuffle(MemorySource(SAMPLES), fraction)


def test_any_integer_is_a_seed() -> None:
    seeds = [0, 1, -1, 2**64, -(2**70)]
    orders = {tuple(Shuffle(MemorySource(SAMPLES), seed).order(np.arange(50)).tolist()) for seed in seeds}
    assert len(orders) == len(seeds)
    assert np.array_equal(
        Shuffle(MemorySource(SAMPLES), int(np.int64(3))).order(np.arange(50)),
        Shuffle(MemorySource(SAMPLES), np.int64(3)).order(np.arange(50)),  # pyright: ignore[reportArgumentType]
    )


def test_it_prints_without_reading() -> None:
    class Unread(MemorySource):
        @property
        def fingerprint(self) -> str:
            raise AssertionError("printing reads no data")

    text = str(Shuffle(Unread(SAMPLES), 7, lanes=2))
    assert text.splitlines()[0].split() == ["Shuffle", "mode=global", "seed=7", "lanes=2", "samples=50"]
    assert text.splitlines()[1].strip().startswith("source: ")

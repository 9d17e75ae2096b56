"""Streams of every kind over numbered samples, and runs of several ranks over them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import KeyedSource


def numbers(length: int, first: int = 0) -> KeyedSource:
    """`{"__key__": str(n), "n": n}` for n from `first` on."""
    return KeyedSource([{"__key__": str(n), "n": n} for n in range(first, first + length)])


def pair(left: Any, right: Any) -> Any:
    return {"n": 2 * left["n"] + (right is None)}


def double(sample: Any) -> Any:
    return {"n": 2 * sample["n"]}


def blend(lanes: int = 1, seed: int = 7) -> Any:
    children = {"books": numbers(50), "web": ps.Shuffle(numbers(70, 1000), 2, lanes=lanes), "code": numbers(9, 5000)}
    return ps.Blend(children, {"books": 0.3, "web": 0.6, "code": 0.1}, seed, lanes=lanes)


STREAMS: dict[str, Callable[[], Any]] = {
    "global": lambda: ps.Shuffle(numbers(50), 1),
    "blocks": lambda: ps.Shuffle(numbers(700), 1, mode="blocks", block_size=16, open_blocks=2, lanes=3),
    "sequential": lambda: ps.Sequential(numbers(50)),
    "blend": blend,
    "blend in lanes": lambda: blend(lanes=8),
    "nested": lambda: ps.Blend(
        {"all": blend(), "more": ps.Map(ps.Shuffle(numbers(30, 9000)), double)}, {"all": 3, "more": 1}, 4
    ),
    "stages": lambda: ps.Stages([(64, blend()), (None, ps.Skip(ps.Shuffle(numbers(40), 9), [(3, 11)]))]),
    "epochs": lambda: ps.Shuffle(ps.Epochs({"a": (numbers(11), 2), "b": (ps.Shuffle(numbers(9, 100), 1), 0.5)}), 6),
    "join": lambda: ps.Shuffle(ps.Join(numbers(20), numbers(20, 7), how="none", joiner=pair), 8),
}
"""Name → a stream whose samples have a number `n`."""


def values(stream: Any, start: int, stop: int) -> list[int]:
    """`n` at the positions `[start, stop)`."""
    return stream.get_batch(np.arange(start, stop))["n"].tolist()


def ranks(stream: Any, global_batch: int, world: int, *, state: Any = None, **options: Any) -> list[Any]:
    """A loader for each rank, `state` loaded."""
    loaders = [ps.Loader(stream, global_batch, rank=rank, world=world, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def steps_of(loaders: list[Any], count: int) -> Iterator[list[int]]:
    """Global batches: what all ranks got in a step, put back in the order of positions."""
    iterators = [iter(loader) for loader in loaders]
    world, micro_batches = len(loaders), loaders[0].global_batch // (len(loaders) * loaders[0].micro_batch)
    for _ in range(count):
        got = [[n for _ in range(micro_batches) for n in next(batches)["n"].tolist()] for batches in iterators]
        # Rank r has the positions p ≡ r (mod world).
        start = loaders[0].consumed - loaders[0].global_batch
        yield [got[(start + place) % world].pop(0) for place in range(loaders[0].global_batch)]


@pytest.fixture(params=sorted(STREAMS))
def make_stream(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return STREAMS[request.param]


@pytest.fixture
def tools() -> Any:
    """The functions of this file."""

    class Tools:
        pass

    for name, value in globals().items():
        if not name.startswith("_"):
            setattr(Tools, name, staticmethod(value) if callable(value) else value)
    return Tools


@pytest.fixture(scope="session")
def lethal() -> Any:
    """A module that worker processes can import."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("lethal")

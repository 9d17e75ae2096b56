"""What is told of coming reads goes down to each source, as its own indices; and only where one wants to know."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._access import prefetch_of
from penstock.cook import cook
from penstock.cook.crude import Crude
from penstock.testing import MemorySource


class Told(MemorySource):
    """Notes what it is told, and what is read."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__([{"id": i, "of": name} for i in range(count)])
        self.told: list[int] = []
        self.read: list[int] = []
        self.whole: set[bool] = set()

    def prefetch(self, batches: Any, /, *, whole: bool = False) -> None:
        assert batches.dtype == np.int64
        assert batches.ndim == 2
        self.told += batches.reshape(-1).tolist()
        self.whole.add(whole)

    def get_batch(self, indices: Any, /) -> Any:
        self.read += np.asarray(indices).tolist()
        return super().get_batch(indices)

    def get_samples(self, indices: Any, /) -> Any:
        self.read += np.asarray(indices).tolist()
        return [MemorySource.__getitem__(self, i) for i in np.asarray(indices).tolist()]


class Files(MemorySource):
    """Gives files by name."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__([{"id": i, "of": name} for i in range(count)])

    def get(self, name: str, /) -> bytes:
        return name.encode()

    def get_media_metadata(self, name: str, /) -> Any:
        raise NotImplementedError


def same(sample: Any, **_: Any) -> Any:
    return sample


def same_cooked(sample: Any) -> Any:
    return sample


def both(a: Any, b: Any) -> Any:
    return ps.Blend({"a": a, "b": b}, {"a": 1, "b": 2}, seed=1)


TREES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "shuffle": lambda a, b, c: ps.Shuffle(a, 1),
    "blend": lambda a, b, c: ps.Blend({"a": ps.Shuffle(a, 1), "b": ps.Shuffle(b, 2), "c": c}, {"a": 3, "b": 1, "c": 1}),
    "nested": lambda a, b, c: ps.Blend({"x": both(a, b), "c": ps.Shuffle(c, 3)}, {"x": 1, "c": 2}),
    "stages": lambda a, b, c: ps.Stages([(40, ps.Shuffle(a, 1)), (30, ps.Shuffle(b, 2)), (None, ps.Shuffle(c, 3))]),
    "concat": lambda a, b, c: ps.Shuffle(ps.Concat([a, b, c]), 5),
    "take": lambda a, b, c: ps.Shuffle(ps.Concat([ps.Take(a, 10, 50), b, c]), 5),
    "skip": lambda a, b, c: ps.Skip(ps.Shuffle(a, 5), [(3, 9), (20, 40)]),
    "map": lambda a, b, c: ps.Map(both(ps.Map(a, same), b), same),
    "aux": lambda a, b, c: ps.WithAux(ps.Shuffle(ps.WithAux(a, x=Files("c", 3)), 1), y=Files("b", 2)),
    "cook": lambda a, b, c: cook(both(Crude(a), Crude(b)), same_cooked),
    "cooked source": lambda a, b, c: ps.Shuffle(cook(Crude(ps.Concat([a, b])), same_cooked), 1),
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(("rank", "world", "workers"), [(0, 1, 0), (1, 3, 0), (0, 1, 2)])
def test_what_is_read_was_told(name: str, rank: int, world: int, workers: int) -> None:
    sources = [Told("a", 60), Told("b", 41), Told("c", 23)]
    stream = TREES[name](*sources)
    assert prefetch_of(stream) is not None
    batches = iter(ps.Loader(stream, 12, rank=rank, world=world, workers=workers))
    for _ in range(20):
        next(batches)
    batches.close()
    assert any(source.read for source in sources)
    for source in sources:
        counts = np.bincount(source.told, minlength=len(source)) - np.bincount(source.read, minlength=len(source))
        assert (counts >= 0).all(), "read, and not told"


@pytest.mark.parametrize("name", TREES)
def test_where_nobody_wants_to_know_nobody_is_told(name: str) -> None:
    sources = [MemorySource([{"id": i} for i in range(60)]) for _ in range(3)]
    assert prefetch_of(TREES[name](*sources)) is None


@pytest.mark.parametrize("name", TREES)
def test_it_goes_to_other_processes(name: str) -> None:
    stream = TREES[name](Told("a", 60), Told("b", 41), Told("c", 23))
    again = pickle.loads(pickle.dumps(stream))
    assert prefetch_of(again) is not None
    assert again.fingerprint == stream.fingerprint


def test_lanes_that_are_read_whole_are_told_so() -> None:
    a, b = Told("a", 60), Told("b", 40)
    children = {"a": ps.Shuffle(a, 1, mode="blocks"), "b": ps.Shuffle(b, 1, mode="global")}
    stream = ps.Blend(children, {"a": 1, "b": 1})
    next(iter(ps.Loader(stream, 4, rank=0, world=1, workers=0)))
    assert (a.whole, b.whole) == ({True}, {False})

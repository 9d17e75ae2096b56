from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import replace

import penstock as ps
from penstock.errors import ConfigError, PenstockError, ResumeMismatch
from penstock.testing import MemorySource

LANES = 12
BATCH = 24


@pytest.fixture(scope="module")
def fns() -> Iterator[Any]:
    folder = str(Path(__file__).parents[1] / "cook")
    sys.path.insert(0, folder)
    yield importlib.import_module("lane_functions")
    sys.path.remove(folder)


def packed(fns: Any, lanes: int = LANES, window: int = 6) -> Any:
    source = MemorySource([{"id": i, "length": 1 + i * 7 % 11} for i in range(200)])
    return ps.PackStream(ps.Shuffle(source, seed=3, lanes=lanes), window, fns.first_fit, fns.join)


def expected(stream: Any, count: int) -> list[list[int]]:
    """The global order, straight from its definition."""

    def outputs(lane: int) -> Iterator[Any]:
        for window in count_from(0):
            yield from stream.outputs(lane, window)

    walks = [outputs(lane) for lane in range(stream.lanes)]
    return [next(walks[number % stream.lanes])["ids"] for number in range(count)]


def loaders(stream: Any, world: int, **options: Any) -> list[ps.Loader]:
    options.setdefault("workers", 0)
    return [ps.Loader(stream, BATCH, rank=rank, world=world, **options) for rank in range(world)]


def step(iterators: list[Iterator[Any]]) -> list[list[int]]:
    """One global batch, in the order of its positions."""
    parts = [next(one)["ids"] for one in iterators]
    return [part[row] for row in range(BATCH // len(parts)) for part in parts]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_every_world_gives_the_same_global_batches(fns: Any, world: int) -> None:
    stream = packed(fns)
    order = expected(stream, 4 * BATCH)
    iterators = [iter(one) for one in loaders(stream, world)]
    for number in range(4):
        assert step(iterators) == order[number * BATCH : (number + 1) * BATCH]


@pytest.mark.parametrize(("kind", "workers"), [("threads", 1), ("threads", 3), ("processes", 2)])
def test_workers_change_nothing(fns: Any, kind: Any, workers: int) -> None:
    stream = packed(fns)
    options = {"workers": workers, "worker_kind": kind, "micro_batch": 4}
    ld = ps.Loader(stream, BATCH, rank=1, world=2, **options)
    found = [one for batch in islice(ld, 9) for one in batch["ids"]]
    assert found == expected(stream, 3 * BATCH)[1::2]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 3)), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_any_schedule_of_worlds_goes_on_where_it_was(fns: Any, schedule: list[tuple[int, int]]) -> None:
    stream = packed(fns)
    order = expected(stream, 20 * BATCH)
    done, states = 0, None
    for world, steps in schedule:
        ranks = loaders(stream, world)
        if states is not None:
            merged = json.loads(json.dumps(ps.merge_states(states)))
            for one in ranks:
                one.load_state_dict(merged)
        iterators = [iter(one) for one in ranks]
        for _ in range(steps):
            assert step(iterators) == order[done * BATCH : (done + 1) * BATCH]
            done += 1
        states = [one.state_dict() for one in ranks]
        assert all(one["consumed"] == done * BATCH for one in states)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_every_step_saved_and_restored(fns: Any, workers: int) -> None:
    stream = packed(fns, lanes=4)
    order = expected(stream, 8 * BATCH)
    ld = ps.Loader(stream, BATCH, rank=0, world=1, workers=workers, micro_batch=8)
    batches = iter(ld)
    for taken in range(10):
        again = ps.Loader(stream, BATCH, rank=0, world=1, workers=workers)
        again.load_state_dict(ld.state_dict())
        start = taken // 3 * BATCH
        assert [next(iter(again))["ids"] for _ in range(2)] == [
            order[start : start + BATCH],
            order[start + BATCH : start + 2 * BATCH],
        ]
        twice = ps.Loader(stream, BATCH, rank=0, world=1, workers=0)
        twice.load_state_dict(again.state_dict())
        assert next(iter(twice))["ids"] == order[start + 2 * BATCH : start + 3 * BATCH]
        assert next(batches)["ids"] == order[taken * 8 : taken * 8 + 8]


def test_an_iterator_follows_a_loaded_state(fns: Any) -> None:
    stream = packed(fns)
    ld = ps.Loader(stream, BATCH, rank=0, world=1, workers=2)
    batches = iter(ld)
    first = next(batches)["ids"]
    state = ld.state_dict()
    second = next(batches)["ids"]
    next(batches)
    ld.load_state_dict(state)
    assert next(batches)["ids"] == second
    ld.seek(0)
    assert next(batches)["ids"] == first


def test_worlds_that_do_not_divide_the_lanes_are_refused(fns: Any) -> None:
    with pytest.raises(ConfigError, match="a world of 1, 2, 3, 4, 6, 12"):
        ps.Loader(packed(fns), 40, rank=0, world=8)


def test_places_without_a_state_are_refused(fns: Any) -> None:
    with pytest.raises(ConfigError, match="merge_states"):
        ps.Loader(packed(fns), BATCH, rank=0, world=1, start=BATCH)
    with pytest.raises(ConfigError, match="merge_states"):
        ps.Loader(packed(fns), BATCH, rank=0, world=1).seek(3)
    with pytest.raises(ConfigError, match="no tail"):
        ps.Loader(packed(fns), BATCH, rank=0, world=1, tail="pad")


def test_a_part_of_the_ranks_is_not_enough(fns: Any) -> None:
    stream = packed(fns)
    ranks = loaders(stream, 2)
    states = [one.state_dict() for one in ranks]
    with pytest.raises(ResumeMismatch, match="merge_states"):
        ps.Loader(stream, BATCH, rank=0, world=1).load_state_dict(states[0])
    ps.Loader(stream, BATCH, rank=1, world=4).load_state_dict(states[1])
    next(iter(ranks[1]))
    with pytest.raises(ResumeMismatch, match="comes from a different run or step"):
        ps.merge_states([states[0], ranks[1].state_dict()])
    with pytest.raises(ResumeMismatch, match="disagree on lane 0"):
        ps.merge_states([states[0], {**states[0], "lanes": [[0, 5, 5]]}])
    with pytest.raises(ResumeMismatch, match="not a state of lanes"):
        ps.merge_states([{**states[0], "lanes": [[0, -1, 5]]}])
    with pytest.raises(ResumeMismatch, match="none from rank 1"):
        ps.merge_states([states[0], states[0]])
    with pytest.raises(ResumeMismatch, match="not a state"):
        ps.merge_states([{}])
    with pytest.raises(ConfigError, match="no states to merge"):
        ps.merge_states([])


def test_another_window_is_another_stream(fns: Any) -> None:
    state = ps.Loader(packed(fns), BATCH, rank=0, world=1).state_dict()
    with pytest.raises(ResumeMismatch, match="recipe"):
        ps.Loader(packed(fns, window=7), BATCH, rank=0, world=1).load_state_dict(state)


def test_states_of_streams_with_positions_merge_to_one_of_them() -> None:
    stream = ps.Shuffle(MemorySource([{"id": i} for i in range(20)]), seed=1)
    states = [ps.Loader(stream, 4, rank=rank, world=2).state_dict() for rank in range(2)]
    assert ps.merge_states(states) == states[0] == states[1]


def test_a_filter_that_lets_nothing_through_ends(fns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "most_empty_windows", 50)
    stream = ps.PackStream(packed(fns).stream, 1, merge=fns.nothing)
    with pytest.raises(PenstockError, match="has stopped producing samples"):
        next(iter(ps.Loader(stream, BATCH, rank=0, world=1)))


def test_io_errors_are_tried_again_at_the_same_output() -> None:
    failures = iter([True, False, True])

    def flaky(group: list[Any]) -> Any:
        for copy in range(3):
            if copy == 1 and next(failures, False):
                raise TimeoutError("slow disk")
            yield {"id": group[0]["id"], "copy": copy}

    source = MemorySource([{"id": i} for i in range(20)])
    stream = ps.PackStream(ps.Sequential(source), 1, merge=flaky, name="flaky")
    batch = next(iter(ps.Loader(stream, 6, rank=0, world=1, workers=0)))
    assert batch["id"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["copy"].tolist() == [0, 1, 2, 0, 1, 2]

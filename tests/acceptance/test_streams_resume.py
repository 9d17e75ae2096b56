"""A run can stop anywhere and go on in any shape: acceptance of states, restores and factorisations."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.internals import blend_pages

import penstock as ps
from penstock.testing import MemorySource

STEPS, BATCH = 12, 8


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_every_step_can_be_saved_and_restored(make_stream: Any, tools: Any, workers: int) -> None:
    stream = make_stream()
    expected = tools.values(stream, 0, (STEPS + 2) * BATCH)
    run = ps.Loader(stream, BATCH, rank=0, world=1, workers=workers)
    states = [json.dumps(run.state_dict())]
    batches = iter(run)
    for step in range(STEPS):
        assert next(batches)["n"].tolist() == expected[step * BATCH : (step + 1) * BATCH]
        states.append(json.dumps(run.state_dict()))
    for step, state in enumerate(states[:: 1 if workers < 2 else 4]):
        step *= 1 if workers < 2 else 4
        again = ps.Loader(make_stream(), BATCH, rank=0, world=1, workers=workers)
        again.load_state_dict(json.loads(state))
        assert json.dumps(again.state_dict()) == state
        found = [n for batch in itertools.islice(again, 2) for n in batch["n"].tolist()]
        assert found == expected[step * BATCH : (step + 2) * BATCH]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("between", [0, 1, 3])
def test_two_restores_in_a_row(make_stream: Any, tools: Any, workers: int, between: int) -> None:
    expected = tools.values(make_stream(), 0, 200)
    state: Any = None
    consumed = 0
    for _ in range(3):
        run = ps.Loader(make_stream(), BATCH, rank=0, world=1, workers=workers)
        if state is not None:
            run.load_state_dict(state)
        for batch in itertools.islice(run, between):
            assert batch["n"].tolist() == expected[consumed : consumed + BATCH]
            consumed += BATCH
        state = json.loads(json.dumps(run.state_dict()))
        assert state["consumed"] == consumed


@pytest.mark.parametrize(("world", "micro_batch"), [(1, 24), (2, 12), (3, 4), (4, 1), (8, 3), (24, 1)])
@pytest.mark.parametrize("workers", [0, 3])
def test_every_factorisation_gives_the_same_global_batches(
    make_stream: Any, tools: Any, world: int, micro_batch: int, workers: int
) -> None:
    if workers and world > 4:
        return
    stream = make_stream()
    loaders = tools.ranks(stream, 24, world, micro_batch=micro_batch, workers=workers)
    found = list(tools.steps_of(loaders, 3))
    assert [n for batch in found for n in batch] == tools.values(stream, 0, 72)


shapes = st.tuples(st.integers(1, 24), st.integers(1, 4), st.integers(1, 4))
"""World size, samples of a rank, steps."""


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(shapes, min_size=2, max_size=5))
def test_the_world_may_change_at_any_step(make_stream: Any, tools: Any, schedule: list[tuple[int, int, int]]) -> None:
    stream = make_stream()
    expected = tools.values(stream, 0, sum(world * each * steps for world, each, steps in schedule))
    state: Any = None
    found: list[int] = []
    for world, each, steps in schedule:
        loaders = tools.ranks(stream, world * each, world, state=state, workers=0)
        for batch in tools.steps_of(loaders, steps):
            found += batch
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1
        state = json.loads(states[0])
    assert found == expected


@pytest.mark.parametrize("lanes", [1, 8, 24])
def test_lanes_in_every_world(tools: Any, lanes: int) -> None:
    stream = tools.blend(lanes=lanes)
    for world in range(1, 25):
        [batch] = tools.steps_of(tools.ranks(stream, 2 * world, world, workers=0, start=2 * world * 7), 1)
        assert batch == tools.values(stream, 14 * world, 16 * world)


def test_a_state_is_small() -> None:
    children = {f"source-{i:03}": MemorySource([{"n": j} for j in range(20 + i)]) for i in range(100)}
    stream = ps.Blend(children, {name: 1 + place for place, name in enumerate(children)}, 1)
    run = ps.Loader(stream, 512, rank=0, world=1, workers=0, start=512 * 10**8)
    bare = len(json.dumps({**run.state_dict(), "children": {}, "reads": [], "history": []}))
    state = run.state_dict()
    assert len(state["children"]) == 100
    assert bare < 160
    assert len(json.dumps(state)) <= bare + 64 * 100 + 40
    # Another shape at each restore: 40 bytes each.
    for change in range(1, 12):
        again = ps.Loader(stream, 512 * (1 + change % 3), rank=0, world=1 + change % 2, workers=0)
        again.load_state_dict(state)
        next(iter(again))
        state = again.state_dict()
    assert len(state["history"]) == 12
    assert len(json.dumps(state)) <= bare + 64 * 100 + 40 * 12


def test_what_a_restore_does_is_independent_of_the_position() -> None:
    class Counted(MemorySource):
        reads = 0

        def get_batch(self, indices: Any, /) -> Any:
            type(self).reads += 1
            return super().get_batch(indices)

    def restored(start: int) -> tuple[int, int]:
        def stream() -> Any:
            children = {name: Counted([{"n": i} for i in range(64)]) for name in "ab"}
            return ps.Blend(children, {"a": 1, "b": 65535}, 3)

        state = ps.Loader(stream(), 64, rank=0, world=1, start=start).state_dict()
        Counted.reads = 0
        blend = stream()
        run = ps.Loader(blend, 64, rank=0, world=1, workers=0)
        run.load_state_dict(state)
        assert next(iter(run))["n"].shape == (64,)
        return Counted.reads, blend_pages(blend)

    early, late = restored(64), restored(64 * (10**12 // 64))
    assert early == late
    assert np.less_equal(late, 2).all()

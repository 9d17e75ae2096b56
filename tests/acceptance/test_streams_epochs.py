"""Every sample exactly once an epoch, and finite passes that are the same length on every rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import MemorySource


def numbers(length: int) -> MemorySource:
    return MemorySource([{"n": i} for i in range(length)])


SHUFFLES: list[dict[str, Any]] = [
    {"mode": "global"},
    {"mode": "global", "lanes": 8},
    {"mode": "blocks"},
    {"mode": "blocks", "block_size": 5, "open_blocks": 1},
    {"mode": "blocks", "block_size": 3, "open_blocks": 4, "lanes": 2},
    {"mode": "blocks", "block_size": 7, "open_blocks": 2, "lanes": 24},
]


@pytest.mark.parametrize("options", SHUFFLES)
@pytest.mark.parametrize("world", [1, 3, 8])
def test_every_sample_once_an_epoch_over_all_ranks(tools: Any, options: dict[str, Any], world: int) -> None:
    size = 6 * world * 4
    stream = ps.Shuffle(numbers(size), 3, **options)
    loaders = tools.ranks(stream, 4 * world, world, workers=0)
    found = [n for batch in tools.steps_of(loaders, 12) for n in batch]
    first, second = found[:size], found[size:]
    assert sorted(first) == sorted(second) == list(range(size))
    assert first != second


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.sampled_from(range(len(SHUFFLES))), st.integers(0, 3))
def test_epochs_of_any_size(size: int, which: int, epoch: int) -> None:
    stream = ps.Shuffle(numbers(size), 3, **SHUFFLES[which])
    held = stream.get_batch(range(epoch * size, (epoch + 1) * size))["n"].tolist()
    assert sorted(held) == list(range(size))
    assert {stream.locate(position).epoch for position in range(epoch * size, (epoch + 1) * size)} == {epoch}


@pytest.mark.parametrize("lanes", [1, 8])
def test_in_a_blend_each_child_has_whole_epochs(lanes: int) -> None:
    sizes = {"a": 24, "b": 40}
    children = {name: ps.Shuffle(numbers(size), 1, lanes=lanes) for name, size in sizes.items()}
    blend = ps.Blend(children, {"a": 1, "b": 3}, 5)
    seen: dict[tuple[str, int], Counter[int]] = {}
    stop = 40 * blend.block_size * lanes
    for position in range(stop):
        at = blend.locate(position)
        seen.setdefault((at.path[0], at.epoch), Counter())[at.index] += 1
    for (name, epoch), counted in seen.items():
        assert set(counted.values()) == {1}
        # The last epochs of a child are still running; all before are whole.
        if epoch < stop * {"a": 1, "b": 3}[name] // 4 // sizes[name] - 2:
            assert len(counted) == sizes[name]


@pytest.mark.parametrize("batch", [5, 10, 20, 25])
def test_validation_over_five_ranks(batch: int) -> None:
    loaders = [ps.Loader(numbers(23), batch, rank=rank, world=5, tail="pad", workers=2) for rank in range(5)]
    seen: Counter[int] = Counter()
    steps: set[int] = set()
    for loader in loaders:
        batches = list(loader)
        steps.add(len(batches))
        assert len(batches) == len(loader) == -(-23 // batch)
        assert {len(one["n"]) for one in batches} == {batch // 5}
        for one in batches:
            seen.update(one["n"][one["valid"]].tolist())
    assert steps == {-(-23 // batch)}
    assert seen == Counter(range(23))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 60), world=st.integers(1, 7), each=st.integers(1, 5), tail=st.sampled_from(["pad", "drop"]))
def test_passes_of_any_size(size: int, world: int, each: int, tail: Any) -> None:
    loaders = [
        ps.Loader(numbers(size), world * each, rank=rank, world=world, tail=tail, workers=0) for rank in range(world)
    ]
    seen: Counter[int] = Counter()
    for loader in loaders:
        batches = list(loader)
        assert len(batches) == len(loaders[0])
        for one in batches:
            seen.update(one["n"][one["valid"]].tolist())
    whole = size if tail == "pad" else size // (world * each) * world * each
    assert seen == Counter(range(whole))
    assert loaders[0].left_out == size - whole


def test_mixed_passes_have_the_same_length_on_every_rank() -> None:
    mixed = ps.Epochs({"a": (numbers(23), 2), "b": (ps.Shuffle(numbers(9), 1), 0.5)})
    loaders = [ps.Loader(mixed, 10, rank=rank, world=5, tail="pad", workers=0) for rank in range(5)]
    assert {len(list(loader)) for loader in loaders} == {5}

"""MosaicML Streaming's orders: equal to what the original gave, and to laws that any run obeys."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.order.compat.streaming import shuffle
from penstock.order.compat.streaming.one_epoch import StreamingRun, epoch_grid, epoch_samples, stratified_parts
from penstock.order.compat.streaming.partition import (
    Cluster,
    as_original,
    grid_of,
    is_relaxed,
    padded,
    padding_of,
    partition,
    relaxed_batches,
    steps_of,
)
from penstock.order.compat.streaming.sampling import Weight, chosen_of_shards, drawn_ids, shares_of
from penstock.order.compat.streaming.shuffle import SHUFFLES, shuffled_ids

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "streaming" / "orders.json").read_text())
MAIN = np.array(GOLDEN["shard_sizes"]["main"])

Ids = NDArray[np.int64]


def digest_of(ids: NDArray[Any]) -> str:
    return hashlib.blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).hexdigest()


def check(ids: NDArray[Any], case: dict[str, Any]) -> None:
    assert ids.reshape(-1)[: len(case["first"])].tolist() == case["first"]
    assert digest_of(ids) == case["digest"]


def a_run(shards: tuple[NDArray[Any], ...] = (MAIN,), weights: Any = None, **more: Any) -> StreamingRun:
    sizes = np.array([one.sum() for one in shards])
    shares = shares_of(sizes, weights or [Weight()] * len(shards), more.pop("epoch_size", None), 9176)
    usual: dict[str, Any] = {
        "cluster": Cluster(1, 1, 1, 10),
        "canonical_nodes": 1,
        "block_size": 200,
        "seed": 9176,
        "shuffle": True,
        "shuffle_algo": "py1e",
        "batching_method": "random",
        "partition_algo": "relaxed",
        "sampling_method": "balanced",
        "sampling_granularity": 1,
    }
    return StreamingRun(shards=shards, shares=shares, **{**usual, **more})


def read(grid: NDArray[Any]) -> Ids:
    """The samples of a grid in order, without padding."""
    ids = grid.reshape(-1)
    return ids[ids != padding_of(ids.dtype)].astype(np.int64)


# --- shuffles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["shuffle"])
def test_shuffles_golden(case: dict[str, Any]) -> None:
    sizes = np.array(case.get("shard_sizes", MAIN))
    arguments = (case["num_canonical_nodes"], case["seed"], case["epoch"], case["block_size"])
    check(shuffled_ids(case["algo"], sizes, *arguments), case)


@settings(deadline=None, max_examples=25)
@given(
    algo=st.sampled_from([*SHUFFLES]),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= 8),
    parts=st.integers(1, 8),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 100),
    block=st.integers(2, 100),
)
def test_shuffles_are_permutations(algo: str, sizes: list[int], parts: int, seed: int, epoch: int, block: int) -> None:
    total = sum(sizes)
    borders = [total * part // parts for part in range(parts + 1)]
    now, later = (shuffled_ids(algo, np.array(sizes), parts, seed, epoch + more, block) for more in (0, 1))
    assert now.dtype == np.uint32
    assert sorted(now.tolist()) == [*range(total)]
    if algo != "naive":  # every canonical node keeps its samples
        for begin, end in pairwise(borders):
            assert set(now[begin:end].tolist()) == set(later[begin:end].tolist())


@pytest.mark.parametrize("block", [5, 60, 3000, 100_000])
def test_py1e_in_stretches_equals_one_sort(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.random.default_rng(3).integers(0, 50, 200)
    whole = shuffled_ids("py1e", sizes, 3, 1, 2, block)
    monkeypatch.setattr(shuffle, "_FEWEST_PLACED", 1)
    assert np.array_equal(shuffled_ids("py1e", sizes, 3, 1, 2, block), whole)


@pytest.mark.parametrize(
    ("algo", "parts", "block", "says"),
    [
        ("py1b", 1, 10, "py1br"),
        ("py1br", 1, 1, "2 or more"),
        ("py1e", 1, 0, "1 or more"),
        ("py1e", 40, 10, "canonical node"),
    ],
)
def test_shuffles_that_cannot_be(algo: str, parts: int, block: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        shuffled_ids(algo, np.array([5, 6]), parts, 0, 0, block)


# --- partition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["partition"])
def test_partition_golden(case: dict[str, Any]) -> None:
    cluster = Cluster(case["num_physical_nodes"], case["ranks_per_node"], case["workers_per_rank"], case["batch_size"])
    canonical, first = case["num_canonical_nodes"], case["initial_physical_nodes"]
    ids = np.arange(case["num_samples"], dtype=np.uint32)
    if is_relaxed(case["algo"], canonical, cluster.nodes, first):
        grid = grid_of(relaxed_batches(ids, canonical, cluster, case["drop_first"], first))
    else:
        grid = partition(ids, canonical, cluster, case["drop_first"])
        assert len(grid) == steps_of(len(ids), canonical, cluster, case["drop_first"])
    found = as_original(padded(grid, cluster.batch * cluster.workers), cluster)
    assert list(found.shape) == case["shape"]
    check(found, case)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, int]:
    """A cluster, and canonical nodes that divide its nodes or are divided."""
    nodes, factor = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    canonical = nodes * factor if draw(st.booleans()) else nodes
    if canonical == nodes and draw(st.booleans()):
        nodes *= factor
    return Cluster(nodes, draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))), canonical


@settings(deadline=None, max_examples=40)
@given(made=clusters(), n=st.integers(60, 300), drop=st.integers(0, 50))
def test_every_id_is_dealt(made: tuple[Cluster, int], n: int, drop: int) -> None:
    cluster, canonical = made
    grid = partition(np.arange(n, dtype=np.uint32), canonical, cluster)
    assert set(grid.reshape(-1).tolist()) == set(range(n))
    assert grid.shape == (steps_of(n, canonical, cluster), cluster.ranks)
    # What is dropped at the start leaves the rest as it was, wherever that is whole rows of ranks.
    drop -= drop % cluster.ranks
    left = partition(np.arange(n, dtype=np.uint32), canonical, cluster, drop)
    # Of fewer rows than three other ids may be repeated at the end, in the original too.
    if len(left) > 2:
        assert np.array_equal(left, grid[drop // cluster.ranks :])


def test_the_grid_is_the_rank_s_own_order() -> None:
    cluster = Cluster(2, 2, 3, 4)
    grid = padded(partition(np.arange(500, dtype=np.uint32), 4, cluster), 12)
    found = as_original(grid, cluster)
    for rank in range(4):
        of_rank = found[rank // 2, rank % 2]
        batches = [of_rank[batch % 3, batch // 3] for batch in range(3 * found.shape[3])]
        assert np.array_equal(np.concatenate(batches)[:100], grid[:100, rank])


@pytest.mark.parametrize(
    ("n", "canonical", "cluster"),
    [(100, 2, Cluster(3, 1, 1, 1)), (100, 3, Cluster(2, 1, 1, 1)), (3, 2, Cluster(16, 1, 1, 1))],
)
def test_nodes_that_do_not_fit(n: int, canonical: int, cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="nodes"):
        partition(np.arange(n, dtype=np.uint32), canonical, cluster)


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["sampling"])
def test_sampling_golden(case: dict[str, Any]) -> None:
    seed = case["seed"] + (case["epoch"] if case["use_epoch"] else 0)
    found = chosen_of_shards(np.array(case["samples_per_shard"]), case["choose"], case["granularity"], seed)
    assert found.tolist() == case["choose_per_shard"]


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=10),
    choose=st.integers(0, 500),
    granularity=st.integers(1, 12),
    seed=st.integers(0, 2**40),
)
def test_what_is_drawn_adds_up(sizes: list[int], choose: int, granularity: int, seed: int) -> None:
    shards = np.array(sizes)
    chosen = chosen_of_shards(shards, choose, granularity, seed)
    assert chosen.sum() == choose
    times = choose // shards.sum()
    assert ((chosen >= shards * times) & (chosen <= shards * (times + 1))).all()
    drawn = drawn_ids(
        (shards,), [choose], range(1), granularity=granularity, seed=seed, epoch=0, changes=True, balanced=True
    )
    assert drawn.units.sum() == choose
    ids = np.arange(choose) if drawn.ids is None else drawn.ids
    counts = np.bincount(ids, minlength=int(shards.sum()))
    assert counts.max(initial=0) - counts.min(initial=choose) <= 1
    assert np.add.reduceat(counts, np.cumsum(shards) - shards).tolist() == chosen.tolist()


@pytest.mark.parametrize(
    ("weights", "epoch_size", "says"),
    [
        ([{"proportion": 1}, {"repeat": 1}], None, "can't be combined"),
        ([{"proportion": 1}, {}], None, "can't be combined"),
        ([{"repeat": 1}, {}], 5, "epoch_size"),
        ([{"choose": 0}, {"choose": 0}], None, "no sample"),
        ([{"proportion": 0}, {"proportion": 0}], None, "0"),
    ],
)
def test_weights_that_cannot_be(weights: list[dict[str, float]], epoch_size: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        shares_of(np.array([10, 20]), [Weight(**weight) for weight in weights], epoch_size, 0)


@pytest.mark.parametrize("weight", [{"proportion": 1.0, "choose": 3}, {"repeat": -1.0}])
def test_a_weight_that_cannot_be(weight: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Weight(**weight)


# --- batches ---------------------------------------------------------------------------------------------------------

STREAMS = tuple(np.array(GOLDEN["shard_sizes"][name]) for name in "ABC")
PROPORTIONS = [Weight(proportion=1), Weight(proportion=2), Weight(proportion=1)]
OWNERS = np.repeat(np.arange(3), [int(sizes.sum()) for sizes in STREAMS])
METHODS = ["random", "stratified", "per_stream", "device_per_stream"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drop", [0, 64, 65, 200])
@pytest.mark.parametrize("shuffle", [False, True])
def test_resuming_is_going_on(method: str, drop: int, shuffle: bool) -> None:
    cluster = Cluster(2, 2, 2, 8)
    run = a_run(STREAMS, PROPORTIONS, batching_method=method, cluster=cluster, canonical_nodes=2, shuffle=shuffle)
    whole, left = read(epoch_grid(run, 3)), read(epoch_grid(run, 3, drop))
    assert len(whole) == epoch_samples(run)
    assert len(left) == epoch_samples(run, drop)
    if method == "random":
        if drop % 4 == 0:
            assert np.array_equal(left[:300], whole[drop : drop + 300])
    else:
        assert np.array_equal(left, whole[drop // 32 * 32 :])


def test_stratified_batches_hold_the_same_of_each_stream() -> None:
    run = a_run(STREAMS, PROPORTIONS, batching_method="stratified", cluster=Cluster(1, 2, 1, 10))
    assert stratified_parts(run) == [5, 10, 5]
    batches = read(epoch_grid(run, 0)).reshape(-1, 20)
    for batch in batches:
        assert np.bincount(OWNERS[batch]).tolist() == [5, 10, 5]


def test_per_stream_batches_are_of_one_stream() -> None:
    run = a_run(STREAMS, batching_method="per_stream", cluster=Cluster(1, 2, 1, 10))
    owners = OWNERS[read(epoch_grid(run, 0)).reshape(-1, 20)]
    assert (owners == owners[:, :1]).all()
    assert set(owners[:, 0].tolist()) == {0, 1, 2}


def test_device_batches_are_of_one_stream() -> None:
    cluster = Cluster(2, 2, 1, 5)
    run = a_run(STREAMS, batching_method="device_per_stream", cluster=cluster, canonical_nodes=4)
    batches = as_original(epoch_grid(run, 0), cluster).reshape(-1, 5)
    batches = batches[batches[:, 0] >= 0]
    assert (batches >= 0).all()
    owners = OWNERS[batches]
    assert (owners == owners[:, :1]).all()
    assert set(owners[:, 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("algo", [*SHUFFLES])
def test_the_world_does_not_change_global_batches(method: str, algo: str) -> None:
    worlds = [Cluster(1, 1, 1, 32), Cluster(1, 4, 2, 8), Cluster(2, 2, 3, 8), Cluster(4, 2, 1, 4)]
    runs = [
        a_run(STREAMS, batching_method=method, cluster=cluster, canonical_nodes=4, shuffle_algo=algo)
        for cluster in worlds
    ]
    found = [read(epoch_grid(run, 1)) for run in runs]
    for ids in found:
        batches = [sorted(ids[at : at + 32].tolist()) for at in range(0, 320, 32)]
        assert batches == [sorted(found[0][at : at + 32].tolist()) for at in range(0, 320, 32)]


def test_fixed_sampling_takes_the_same_samples() -> None:
    run = a_run(STREAMS, epoch_size=200, sampling_method="fixed")
    first, second = read(epoch_grid(run, 0)), read(epoch_grid(run, 1))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert first.tolist() != second.tolist()
    balanced = replace(run, sampling_method="balanced")
    assert sorted(read(epoch_grid(balanced, 0)).tolist()) != sorted(read(epoch_grid(balanced, 1)).tolist())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"batching_method": "mixed"}, "batching_method"),
        ({"shuffle_algo": "py1b"}, "shuffle_algo"),
        ({"partition_algo": "new"}, "partition_algo"),
        ({"sampling_method": "all"}, "sampling_method"),
        ({"seed": -1}, "seed"),
        ({"cluster": Cluster(1, 1, 1, 0)}, "at least 1"),
        ({"cluster": Cluster(3, 1, 1, 1), "canonical_nodes": 2}, "divide"),
        ({"cluster": Cluster(1, 1, 1, 2), "batching_method": "stratified"}, "Number of samples for stream 2 is 0"),
        ({"cluster": Cluster(1, 1, 1, 100), "batching_method": "per_stream"}, "stream 2 has too few"),
        ({"cluster": Cluster(2, 1, 1, 4), "batching_method": "device_per_stream"}, "canonical"),
    ],
)
def test_runs_that_cannot_be(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        epoch_samples(a_run(STREAMS, **more))


def test_too_far_into_an_epoch() -> None:
    with pytest.raises(ConfigError, match="fewer samples"):
        epoch_grid(a_run(), 0, 1100)


def test_memory() -> None:
    n = 4_000_000
    shards = (np.full(400, n // 400),)
    for algo, most in (("py1s", 10), ("py1br", 10), ("py2s", 14), ("naive", 10)):
        run = a_run(shards, shuffle_algo=algo, canonical_nodes=4, cluster=Cluster(2, 2, 1, 8))
        tracemalloc.start()
        try:
            epoch_grid(run, 0)
            assert tracemalloc.get_traced_memory()[1] < most * n, algo
        finally:
            tracemalloc.stop()

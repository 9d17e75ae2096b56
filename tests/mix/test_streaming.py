"""`StreamingOrder`: a stream in the order of a MosaicML Streaming run, and that run's going on here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock.abc import Stream
from penstock.errors import ConfigError, ResumeMismatch
from penstock.load import Loader
from penstock.mix import StreamingOrder
from penstock.mix.streaming import number_of
from penstock.order.compat.streaming import epochs as epochs
from penstock.order.compat.streaming.sampling import Weight
from penstock.testing.memory import MemorySource
from penstock.testing.streams import StreamLaws

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "streaming" / "orders.json").read_text())


class Shards(MemorySource):
    """Samples `{"id": number}` in shards."""

    def __init__(self, sizes: list[int], first: int = 0) -> None:
        super().__init__([{"id": first + number} for number in range(sum(sizes))])
        self.block_starts = np.cumsum([0, *sizes])


def sizes_of(name: str) -> list[int]:
    return GOLDEN["shard_sizes"][name]


def main_order(**more: Any) -> StreamingOrder:
    return StreamingOrder(Shards(sizes_of("main")), **{"batch_size": 16, "shuffle": True, **more})


def three(weights: list[dict[str, float]], **more: Any) -> StreamingOrder:
    sources = [Shards(sizes_of(name), 1000 * number) for number, name in enumerate("ABC")]
    return StreamingOrder([*zip(sources, weights, strict=True)], **{"batch_size": 8, "shuffle": True, **more})


class TestOneSource(StreamLaws):
    def make(self) -> Stream[Any]:
        return StreamingOrder(Shards([7, 9, 4]), batch_size=4, shuffle=True, world=(1, 2, 1))


class TestSeveralSources(StreamLaws):
    def make(self) -> Stream[Any]:
        # Two nodes share the last global batch of each epoch unevenly: padding is not only at the end.
        sources = [(Shards([30, 41]), {"repeat": 1.5}), (Shards([20], 100), {"repeat": 1})]
        shape: dict[str, Any] = {"batching_method": "device_per_stream", "world": (2, 2, 2)}
        return StreamingOrder(sources, batch_size=4, shuffle=True, num_canonical_nodes=4, **shape)


class TestResumed(StreamLaws):
    def make(self) -> Stream[Any]:
        order = StreamingOrder(Shards([7, 9, 4]), batch_size=2, shuffle=True)
        order.load_state_dict({"epoch": 3, "sample_in_epoch": 6, "num_canonical_nodes": 1, "shuffle_seed": 5})
        return order


# --- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["work"], ids=lambda case: case["desc"])
def test_epochs_golden(case: dict[str, Any]) -> None:
    arguments = dict(case["args"])
    epoch, drop, state = (arguments.pop(name, default) for name, default in (("epoch", 0), ("drop", 0), ("resume", 0)))
    streams = arguments.pop("streams", None)
    if streams is None:
        order = main_order(**arguments)
    else:
        order = three([{k: v for k, v in stream.items() if k != "local"} for stream in streams], **arguments)
    assert order.epoch_size == case["epoch_size"]
    if state:
        order.load_state_dict(state)
    ids = order.epoch_ids(epoch=epoch, drop_first=drop)
    assert ids.dtype == np.int64
    assert list(ids.shape) == case["shape"]
    assert ids.reshape(-1)[:8].tolist() == case["first"]
    assert hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=16).hexdigest() == case["digest"]
    if not drop and not state:
        first = epoch * int((ids >= 0).sum())
        assert order.locate(first).index == case["first"][0]
        assert order.locate(first).epoch == epoch


@pytest.mark.parametrize("case", GOLDEN["iterated_single_process"], ids=lambda case: case["algo"])
def test_iterated_golden(case: dict[str, Any]) -> None:
    options = {name: case[name] for name in ("batch_size", "shuffle_seed", "shuffle_block_size")}
    order = main_order(shuffle_algo=case["algo"], **options)
    for epoch, expected in enumerate(case["epochs"]):
        size = int((order.epoch_ids(epoch=epoch) >= 0).sum())
        ids = order.get_batch(np.arange(epoch * size, (epoch + 1) * size))["id"]
        assert hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=16).hexdigest() == expected


def test_a_run_goes_on_here() -> None:
    [case] = GOLDEN["resume_with_dataloader"]
    begun = main_order(shuffle_seed=7, num_canonical_nodes=2)
    before = [batch["id"].tolist() for batch in islice(Loader(begun, 16), len(case["batches_before"]))]
    assert before == case["batches_before"]
    assert begun.state_dict(400) == case["state_dict"]

    order = main_order()  # seed and canonical nodes are the state's
    order.load_state_dict(case["state_dict"])
    expected = [*case["batches_after_resume"], *case["first_batches_of_next_epoch"]]
    expected_ids = [sample for batch in expected for sample in batch]
    found = [batch["id"].tolist() for batch in islice(Loader(order, 16), len(expected))]
    # The original's last batch of an epoch is short, ours is filled from the next epoch.
    assert [sample for batch in found for sample in batch][: len(expected_ids)] == expected_ids
    assert found[:37] == case["batches_after_resume"][:37]


# --- ranks -----------------------------------------------------------------------------------------------------------

WORLD: dict[str, Any] = {"world": (2, 2, 2), "num_canonical_nodes": 4, "batch_size": 8}


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_loader_ranks_read_what_the_original_s_ranks_read(method: str) -> None:
    order = three([{"proportion": 1}, {"proportion": 2}, {"proportion": 1}], batching_method=method, **WORLD)
    ids = order.epoch_ids(epoch=0)
    batches = min(10, ids.shape[3] * 2 - 2)
    starts = np.array([0, 1000 - 100, 2000 - 330])
    for rank in range(4):
        of_rank = ids[rank // 2, rank % 2]
        loader = Loader(order, 32, rank=rank, world=4)
        for number, batch in enumerate(islice(loader, batches)):
            expected = of_rank[number % 2, number // 2]
            owner = np.searchsorted([100, 330], expected, side="right")
            assert batch["id"].tolist() == (expected + starts[owner]).tolist()


@settings(deadline=None, max_examples=15)
@given(
    world=st.sampled_from([(1, 1, 0), (1, 4, 2), (2, 2, 1), (4, 1, 3)]),
    read=st.integers(0, 29),
    epoch=st.integers(0, 3),
    method=st.sampled_from(["random", "stratified", "per_stream", "device_per_stream"]),
)
def test_states_lead_back(world: tuple[int, int, int], read: int, epoch: int, method: str) -> None:
    def make() -> StreamingOrder:
        return three([{}, {}, {}], world=world, num_canonical_nodes=4, batching_method=method)

    order, resumed = make(), make()
    global_batch = 8 * world[0] * world[1]
    size = int((order.epoch_ids(epoch=0) >= 0).sum())
    consumed = epoch * size + min(read, size // global_batch) * global_batch
    state = json.loads(json.dumps(order.state_dict(consumed)))
    epoch = state["epoch"]  # the next one where nothing was left
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    count = min(80, (epoch + 1) * size - consumed)
    ids = np.arange(count)
    assert np.array_equal(resumed.resolve(ids), order.resolve(ids + consumed))
    left = resumed.epoch_ids(epoch=epoch)
    assert (left >= 0).sum() == (epoch + 1) * size - consumed
    assert np.array_equal(left, order.epoch_ids(epoch=epoch, drop_first=state["sample_in_epoch"]))
    # After it, whole epochs again.
    after = resumed.resolve(np.arange((epoch + 1) * size - consumed, (epoch + 2) * size - consumed))
    assert np.array_equal(after, order.resolve(np.arange((epoch + 1) * size, (epoch + 2) * size)))


def test_a_run_that_began_with_other_nodes() -> None:
    state = {"epoch": 0, "sample_in_epoch": 120, "num_canonical_nodes": 4, "shuffle_seed": 1}
    order = main_order(world=(3, 1, 1), num_canonical_nodes=4, batch_size=4)
    with pytest.raises(ConfigError, match="divide"):
        order[0]
    with pytest.raises(ConfigError, match="divide"):
        order.load_state_dict(state)
    order.load_state_dict({**state, "initial_physical_nodes": 4})
    begun = main_order(world=(4, 1, 1), num_canonical_nodes=4, batch_size=3, shuffle_seed=1)
    for step in range(50):
        ours, theirs = order.resolve(np.arange(12) + 12 * step), begun.resolve(np.arange(12) + 120 + 12 * step)
        assert sorted(ours.tolist()) == sorted(theirs.tolist())
    with pytest.raises(ConfigError, match="multiple of 4"):
        main_order(world=(3, 1, 1), num_canonical_nodes=4, batch_size=5).load_state_dict(
            {**state, "initial_physical_nodes": 4}
        )


def test_replicas_read_the_same() -> None:
    order = main_order(world=(2, 4, 1), replication=2, batch_size=4)
    plain = main_order(world=(1, 4, 1), batch_size=4)
    ids = order.epoch_ids(epoch=1)
    assert ids.shape[:3] == (2, 4, 1)
    ranks = ids.reshape(8, *ids.shape[2:])
    assert np.array_equal(ranks[0::2], ranks[1::2])
    assert np.array_equal(ranks[0::2], plain.epoch_ids(epoch=1)[0])
    assert np.array_equal(order.resolve(np.arange(99)), plain.resolve(np.arange(99)))


# --- files -----------------------------------------------------------------------------------------------------------


class Kept:
    """A `Derived` that counts what it builds."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if key not in self.arrays:
            self.arrays[key] = np.ascontiguousarray(build(), dtype)
        return self.arrays[key]


def test_large_epochs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = main_order(world=(1, 1, 3)).resolve(np.arange(3000))
    monkeypatch.setattr(epochs, "KEPT_FROM", 1)
    kept = Kept()
    assert np.array_equal(main_order(world=(1, 1, 3), derived=kept).resolve(np.arange(3000)), expected)
    assert [array.dtype.name for array in kept.arrays.values()] == ["uint32", "int64"] * 3
    before = {key: array.copy() for key, array in kept.arrays.items()}
    assert np.array_equal(main_order(world=(1, 1, 3), derived=kept).resolve(np.arange(3000)), expected)
    assert kept.arrays.keys() == before.keys()
    # Other arguments, other files.
    for more in ({"shuffle_seed": 1}, {"shuffle_algo": "py1s"}, {"num_canonical_nodes": 2}):
        found = main_order(derived=kept, **more)
        assert not np.array_equal(found.resolve(np.arange(1000)), expected[:1000])


def test_default_files_are_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(epochs, "KEPT_FROM", 1)
    order = main_order()
    order[0]
    assert len([*tmp_path.rglob("*.npy")]) == 2


# --- what it is ------------------------------------------------------------------------------------------------------


def test_fingerprints_tell_orders_apart() -> None:
    order, resumed = main_order(), main_order()
    resumed.load_state_dict(order.state_dict(160))
    others = [main_order(shuffle_seed=1), main_order(world=(2, 1, 1)), main_order(batch_size=8), resumed]
    assert len({order.fingerprint, *(other.fingerprint for other in others)}) == 5
    # Workers change nothing but padding.
    assert main_order(world=(1, 1, 4)).fingerprint == order.fingerprint


def test_a_loader_s_state_goes_on() -> None:
    loader = Loader(main_order(), 16)
    batches = [batch["id"].tolist() for batch in islice(loader, 9)]
    again = Loader(main_order(), 16)
    again.seek(5)
    again.load_state_dict(again.state_dict())
    assert [batch["id"].tolist() for batch in islice(again, 4)] == batches[5:]
    other = Loader(main_order(shuffle_seed=2), 16)
    with pytest.raises(ResumeMismatch):
        other.load_state_dict(loader.state_dict())


def test_sources_of_different_columns() -> None:
    class Named(Shards):
        def __getitem__(self, index: int, /) -> Any:
            return {"name": f"n{super().__getitem__(index)['id']}"}

        def get_batch(self, indices: Any, /) -> Any:
            return {"name": [self[index]["name"] for index in np.asarray(indices).tolist()]}

    order = StreamingOrder([Shards([5]), Named([5])], batch_size=2)
    assert order.get_batch([4, 5]) == {"id": [4, None], "name": [None, "n0"]}
    assert order.get_resolved_samples(order.resolve(np.array([4, 5]))) == [{"id": 4}, {"name": "n0"}]


@pytest.mark.parametrize(
    ("source", "more", "says"),
    [
        (MemorySource([{"id": 1}]), {}, "block_starts"),
        (Shards([]), {}, "without samples"),
        ([], {}, "no source"),
        ([(Shards([4]), {"weight": 1})], {}, "proportion, repeat or choose"),
        (Shards([40]), {"world": (1, 1)}, "world must be"),
        (Shards([40]), {"world": (1, 3, 1), "replication": 2}, "replication"),
        (Shards([40]), {"world": (0, 1, 1)}, "at least 1"),
        (Shards([40]), {"epoch_size": "1.5"}, "number of samples"),
        (Shards([40]), {"batching_method": "stratified", "batch_size": 64}, "smaller than one batch"),
    ],
)
def test_arguments_that_do_not_fit(source: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StreamingOrder(source, **{"batch_size": 2, **more})


STATE = {"epoch": 0, "sample_in_epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": 1}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"version": 1, "consumed": 5},
        {**STATE, "epoch": -1},
        {**STATE, "sample_in_epoch": "3"},
        {**STATE, "num_canonical_nodes": 0},
        {**STATE, "shuffle_seed": True},
        {**STATE, "initial_physical_nodes": 0},
    ],
)
def test_states_that_are_none(state: Any) -> None:
    order = main_order()
    before = order.fingerprint
    with pytest.raises(ResumeMismatch):
        order.load_state_dict(state)
    assert order.fingerprint == before


def test_a_state_beyond_the_epoch() -> None:
    order = main_order()
    with pytest.raises(ConfigError, match="fewer samples"):
        order.load_state_dict({**STATE, "sample_in_epoch": 2000})
    order.load_state_dict({**STATE, "sample_in_epoch": 1000})
    assert order.locate(0).epoch == 1
    assert order.epoch_ids(epoch=0).shape == (1, 1, 1, 0, 16)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[(None, None), (0, None), (17, 17), ("17", 17), ("90k", 90_000), ("2M", 2_000_000), ("1b", 10**9)],
        # As `number_abbrev_to_int` of streaming 0.13.0.
        *[("0.1k", 100), ("1.5k", 1500), ("2.3k", 2300), (".5k", 500), ("1.m", 10**6)],
    ],
)
def test_numbers(text: Any, number: int | None) -> None:
    assert number_of(text) == number


def test_weights_by_name() -> None:
    assert Weight(choose=3).as_dict() == {"proportion": None, "repeat": None, "choose": 3}


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("canonical_nodes", [1, 4, 8])
def test_streams_too_small_for_a_batch_are_named(tmp_path: Path, method: str, canonical_nodes: int) -> None:
    for name, count in (("large", 40), ("small", 3)):
        with ps.create(tmp_path / name, format="mds", columns={"n": "int"}) as writer:
            for n in range(count):
                writer.write({"n": n})
    sources = [(ps.open(tmp_path / "large"), {}), (ps.open(tmp_path / "small"), {"choose": 1})]
    options: dict[str, Any] = {"batching_method": method, "num_canonical_nodes": canonical_nodes, "shuffle": True}
    with pytest.raises(ConfigError, match=f"{tmp_path / 'small'}: .*stream 1") as refused:
        _ = StreamingOrder(sources, batch_size=8, **options)[0]
    assert refused.value.path == str(tmp_path / "small")

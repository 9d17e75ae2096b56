"""Modalities' orders: equal to torch, Python and numpy, and to what its sampler gave."""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.abc import Order, Stream
from penstock.errors import ConfigError
from penstock.order.compat import modalities
from penstock.order.compat.modalities import (
    TORCH_WIDE,
    ModalitiesOrder,
    ModalitiesShuffle,
    RankShare,
    modalities_order,
    numpy_list_shuffle,
    numpy_targets,
    python_shuffle,
    python_targets,
    torch_randperm,
)
from penstock.store.derived import DerivedCache
from penstock.testing.memory import MemorySource
from penstock.testing.orders import OrderLaws
from penstock.testing.streams import StreamLaws

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "modalities" / "orders.json").read_text())

# Around powers of two the number of bits drawn changes; around 2^16 the chunks of words do.
SIZES = [*range(12), 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 65535, 65536, 65537, 70_001]


# --- shuffles of lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["python_random_shuffle"])
def test_python_shuffle_golden(case: dict[str, Any]) -> None:
    assert python_shuffle(case["n"], case["seed"]).tolist() == case["result"]


@pytest.mark.parametrize("case", GOLDEN["numpy_list_shuffle"])
def test_numpy_list_shuffle_golden(case: dict[str, Any]) -> None:
    assert numpy_list_shuffle(case["n"], case["seed"]).tolist() == case["result"]


def shuffled_by_python(n: int, seed: int) -> list[int]:
    values = list(range(n))
    random.Random(seed).shuffle(values)
    return values


def shuffled_by_numpy(n: int, seed: int) -> list[int]:
    values = list(range(n))
    np.random.default_rng(seed).shuffle(values)
    return values


@pytest.mark.parametrize("n", SIZES)
def test_shuffles_equal_the_real_ones(n: int) -> None:
    assert python_shuffle(n, 42).tolist() == shuffled_by_python(n, 42)
    assert numpy_list_shuffle(n, 42).tolist() == shuffled_by_numpy(n, 42)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(0, 400), seed=st.integers(-(2**70), 2**70))
def test_shuffles_of_any_seed(n: int, seed: int) -> None:
    assert python_shuffle(n, seed).tolist() == shuffled_by_python(n, seed)
    assert numpy_list_shuffle(n, abs(seed)).tolist() == shuffled_by_numpy(n, abs(seed))


class Enough(Exception):
    """Ends a walk that would not end."""


class Swaps(list[int]):
    """A list that says it is huge, and records which places are swapped."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: Any) -> Any:
        self.asked.append(place)
        if len(self.asked) == 80:
            raise Enough
        return 0

    def __setitem__(self, place: Any, value: Any) -> None:
        return None


def first_targets(runs: Iterator[tuple[int, NDArray[np.int64]]], count: int) -> list[tuple[int, int]]:
    """The first `count` pairs of a place and its target."""
    pairs = ((first - step, target) for first, targets in runs for step, target in enumerate(targets.tolist()))
    return list(islice(pairs, count))


@pytest.mark.parametrize("length", [2**32 + 20, 2**33 + 7, 2**40, 2**32 - 5])
@pytest.mark.parametrize(
    ("shuffle", "targets"),
    [(random.Random.shuffle, python_targets), (np.random.Generator.shuffle, numpy_targets)],
    ids=["python", "numpy"],
)
def test_more_places_than_one_word_can_name(length: int, shuffle: Any, targets: Callable[[int, int], Any]) -> None:
    swaps = Swaps(length)
    with pytest.raises(Enough):
        shuffle(random.Random(7) if targets is python_targets else np.random.default_rng(7), swaps)
    asked = [{*pair} for pair in zip(swaps.asked[0:78:2], swaps.asked[1:78:2], strict=True)]
    assert [{*pair} for pair in first_targets(targets(length - 1, 7), 39)] == asked


def test_numpy_takes_no_negative_seed() -> None:
    with pytest.raises(ConfigError, match="negative seeds"):
        numpy_list_shuffle(5, -1)


@pytest.mark.parametrize("shuffle", [python_shuffle, numpy_list_shuffle, torch_randperm])
def test_memory_is_four_bytes_a_place(shuffle: Callable[[int, int], NDArray[Any]]) -> None:
    n = 1_000_000
    tracemalloc.start()
    try:
        assert shuffle(n, 3).dtype == np.uint32
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * n + 6_000_000


# --- torch.randperm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["torch_randperm"])
def test_randperm_golden(case: dict[str, Any]) -> None:
    order = torch_randperm(case["n"], case["seed"])
    assert order[: len(case["first"])].tolist() == case["first"]
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == case["sha256_i64"]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", [0, -3, 2**63 + 5])
def test_randperm_equals_torch(n: int, seed: int) -> None:
    expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    assert np.array_equal(torch_randperm(n, seed), expected)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seeds_that_torch_refuses(seed: int) -> None:
    with pytest.raises((RuntimeError, ValueError, OverflowError)):
        torch.Generator().manual_seed(seed)
    with pytest.raises(ConfigError):
        torch_randperm(3, seed)


def inside_out(n: int, seed: int) -> list[int]:
    """The way of torch from 2^32 / 20 places on, step by step."""
    words = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 1 << 32, 2 * n, dtype=np.uint32).tolist()
    values = list(range(n))
    for i in range(n):
        target = ((words[2 * i] << 32) | words[2 * i + 1]) % (i + 1)
        values[i] = values[target]
        values[target] = i
    return values


@pytest.mark.parametrize("n", SIZES)
def test_the_wide_way(n: int) -> None:
    assert torch_randperm(n, 11, wide_from=0).tolist() == inside_out(n, 11)


def test_where_the_wide_way_begins() -> None:
    assert TORCH_WIDE == 214_748_364
    assert torch_randperm(50, 1, wide_from=50).tolist() == inside_out(50, 1)
    assert torch_randperm(50, 1, wide_from=51).tolist() == torch_randperm(50, 1).tolist() != inside_out(50, 1)


# --- the samplers' order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["sampler"], ids=lambda case: "-".join(map(str, list(case.values())[:-1])))
def test_sampler_golden(case: dict[str, Any]) -> None:
    n = case["n"]
    order = modalities_order(n, case["seed"], case["epoch"]) if case["shuffle"] else np.arange(n)
    for rank, expected in enumerate(case["per_rank"]):
        if isinstance(expected, dict):
            with pytest.raises(ValueError, match="skip"):
                RankShare(n, rank, case["num_replicas"], case["drop_last"], case["skip"])
            continue
        share = RankShare(n, rank, case["num_replicas"], case["drop_last"], case["skip"])
        assert len(share) == len(expected)
        assert order[share.places()].tolist() == expected


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_parts_of_a_share(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 50))
    world = data.draw(st.integers(1, 9))
    rank = data.draw(st.integers(0, world - 1))
    share = RankShare(n, rank, world, data.draw(st.booleans()), data.draw(st.integers(0, n)))
    cut = data.draw(st.integers(0, len(share)))
    whole = share.places()
    assert len(whole) == len(share)
    assert whole.tolist() == share.places(0, cut).tolist() + share.places(cut).tolist()


@pytest.mark.parametrize(("rank", "world", "skip"), [(2, 2, 0), (-1, 2, 0), (0, 0, 0), (0, 1, 6), (0, 1, -1)])
def test_shares_that_can_not_be(rank: int, world: int, skip: int) -> None:
    with pytest.raises(ConfigError):
        RankShare(5, rank, world, skip=skip)


def test_an_order_is_made_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    derived = DerivedCache(str(tmp_path))
    order = modalities_order(1000, 3, 4, derived)
    assert not order.flags.writeable
    assert order.dtype == np.uint32
    monkeypatch.setattr(modalities, "torch_randperm", None)
    # Only the sum of seed and epoch counts, as in the original.
    assert np.array_equal(modalities_order(1000, 5, 2, derived), order)
    assert [path.stat().st_size for path in tmp_path.rglob("*.npy")] == [128 + 4 * 1000]


def test_without_a_place_to_keep_it() -> None:
    order = modalities_order(1000, 3)
    assert not order.flags.writeable
    assert np.array_equal(order, torch_randperm(1000, 3))


class TestModalitiesOrder(OrderLaws):
    golden: ClassVar = {
        (10, 0, 0): [4, 1, 7, 5, 3, 9, 0, 8, 6, 2],
        (10, 0, 10): [5, 6, 1, 2, 0, 8, 9, 3, 7, 4],
        (10, 42, 0): [2, 6, 1, 8, 4, 5, 0, 9, 3, 7],
    }
    version = "modalities-1"
    largest = 0

    def make(self, n: int, seed: int) -> Order:
        return ModalitiesOrder(n, seed)

    def test_seeds_and_epochs(self) -> None:
        """As the original, unlike our own orders: the next seed has the next epoch's order."""
        first = self.make(1000, 1).order(np.arange(2000))
        assert not np.array_equal(first[:1000], first[1000:])
        assert np.array_equal(self.make(1000, 2).order(np.arange(1000)), first[1000:])


class TestModalitiesShuffle(StreamLaws):
    def make(self) -> Stream[Any]:
        return ModalitiesShuffle(MemorySource([{"n": n} for n in range(23)]), 5)


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(ConfigError):
        ModalitiesShuffle(MemorySource([]), 0)


def test_epochs_are_kept_while_batches_cross_from_one_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ModalitiesOrder(10, 0)
    crossing = order.order(np.arange(5, 15))
    monkeypatch.setattr(modalities, "torch_randperm", None)
    assert order.order(np.arange(5, 15)).tolist() == crossing.tolist()

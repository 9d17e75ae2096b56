"""The keyed bijection: exact, the same on both paths, and well mixed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.permutation import (
    MAX_SIZE,
    GlobalOrder,
    permute,
    permute_one,
    subkey,
    subkeys,
    unpermute,
)

KEYS = st.integers(0, (1 << 64) - 1)

# These stay for ever under the name feistel-1.
GOLDEN_10 = [2, 3, 7, 4, 1, 5, 8, 9, 0, 6]
GOLDEN_1000 = [73, 896, 905, 321, 455, 790]
GOLDEN_LARGEST = [2982876344209999199, 2468275580140224592, 2266567721916585621]
GOLDEN_SUBKEYS = [3708075323129360035, 1619084061657037301]


def excess(counts: np.ndarray, expected: float) -> float:
    """Chi-square of `counts` against equal shares, in standard deviations above its mean."""
    free = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free))


@settings(max_examples=30, deadline=None)
@given(st.one_of(st.integers(1, 70), st.integers(71, 5000)), KEYS)
def test_it_is_a_bijection_and_inverts(n: int, key: int) -> None:
    values = np.arange(n)
    out = permute(values, n, key)
    assert np.array_equal(np.sort(out), values)
    assert np.array_equal(unpermute(out, n, key), values)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.integers(1, 70), st.integers(71, MAX_SIZE), st.just(MAX_SIZE)), KEYS, st.data())
def test_scalar_and_vectorised_paths_agree(n: int, key: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    out = permute(np.array(values, dtype=np.int64), n, key)
    assert out.tolist() == [permute_one(value, n, key) for value in values]
    assert all(0 <= place < n for place in out.tolist())
    assert unpermute(out, n, key).tolist() == values


@pytest.mark.parametrize("n", [7, 64, 65, 1000])
def test_a_key_for_each_value(n: int) -> None:
    values = np.arange(20_000) % n
    keys = subkeys(3, np.arange(20_000) // n)
    expected = [permute_one(value, n, key) for value, key in zip(values.tolist(), keys.tolist(), strict=True)]
    out = permute(values, n, keys)
    assert out.tolist() == expected
    assert np.array_equal(unpermute(out, n, keys), values)


def test_golden() -> None:
    assert [permute_one(value, 10, 1) for value in range(10)] == GOLDEN_10
    assert permute(np.arange(6), 1000, 1).tolist() == GOLDEN_1000
    assert [permute_one(value, MAX_SIZE, (1 << 64) - 1) for value in (0, 1, MAX_SIZE - 1)] == GOLDEN_LARGEST
    assert [subkey(5, counter) for counter in (0, 1)] == subkeys(5, np.arange(2)).tolist() == GOLDEN_SUBKEYS


@pytest.mark.parametrize("n", range(1, 6))
def test_small_domains_reach_every_permutation(n: int) -> None:
    keys = subkeys(11, np.arange(4000))
    columns = [permute(np.full(len(keys), value), n, keys) for value in range(n)]
    found, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    assert {tuple(row) for row in found.tolist()} == set(itertools.permutations(range(n)))
    if n > 1:
        assert excess(counts, len(keys) / len(counts)) < 5


@pytest.mark.parametrize("n", range(6, 21))
def test_small_domains_reach_many_permutations(n: int) -> None:
    keys = subkeys(13, np.arange(2000))
    rows = np.stack([permute(np.full(len(keys), value), n, keys) for value in range(n)], axis=1)
    # 720 permutations of 6 are nearly all met; of 8 and more hardly one is met twice.
    assert len(np.unique(rows, axis=0)) > (650 if n == 6 else 1600 if n == 7 else 1900)


@pytest.mark.parametrize("n", [5, 20, 64, 65, 97, 128, 1000, 1009])
def test_each_place_is_uniform_over_keys(n: int) -> None:
    keys = subkeys(12345, np.arange(20_000))
    for value in (0, 1, n // 2, n - 1):
        places = permute(np.full(len(keys), value), n, keys)
        assert excess(np.bincount(places, minlength=n), len(keys) / n) < 5


@pytest.mark.parametrize("n", [20, 65, 97])
def test_pairs_of_places_are_uniform_over_keys(n: int) -> None:
    keys = subkeys(99, np.arange(40_000))
    places = [permute(np.full(len(keys), value), n, keys) for value in (0, 1, n - 1)]
    off_diagonal = ~np.eye(n, dtype=bool)
    for left, right in ((0, 1), (0, 2)):
        pairs = np.bincount(places[left] * n + places[right], minlength=n * n).reshape(n, n)
        assert pairs.trace() == 0
        assert excess(pairs[off_diagonal], len(keys) / (n * (n - 1))) < 5


@pytest.mark.parametrize("n", [100_003, 10**9 + 7, 10**12])
def test_neighbours_are_scattered(n: int) -> None:
    out = permute(np.arange(100_000), n, 7)
    for lag in (1, 2, 316, 317, 318):
        # Where differences are free of structure, each hundredth of the domain has its share of them.
        distances = (out[lag:] - out[:-lag]) % n
        assert excess(np.bincount(distances * 100 // n, minlength=100), len(distances) / 100) < 5
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.02


def test_epochs_are_unrelated() -> None:
    n = 1000
    order = GlobalOrder(n, 7)
    epochs = order.order(np.arange(50 * n)).reshape(50, n)
    # Two random permutations agree in one place on average.
    same = [(epochs[i] == epochs[i + 1]).sum() for i in range(49)]
    assert 0.4 < np.mean(same) < 1.8


def test_positions_across_many_epochs_in_one_call() -> None:
    order = GlobalOrder(97, 1)
    asked = np.random.default_rng(0).integers(0, 10**6, 20_000)
    out = order.order(asked)
    assert out[:300].tolist() == [order.order_one(position) for position in asked[:300].tolist()]


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_sizes_outside_the_domain_are_refused(size: int) -> None:
    with pytest.raises(ConfigError):
        GlobalOrder(size, 0)


def test_positions_are_integers() -> None:
    wrong = np.array([0.5])
    with pytest.raises(TypeError):
        GlobalOrder(10, 0).order(wrong)

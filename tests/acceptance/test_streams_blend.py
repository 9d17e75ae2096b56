"""A blend's shares are whole numbers in every block, at every position: acceptance of the arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.internals import BlockPlaces, derive_key, permute_one, subkey

import penstock as ps
from penstock.errors import ConfigError
from penstock.mix import block_counts
from penstock.testing import MemorySource

FAR = 10**12


def children(count: int, lanes: int = 1) -> dict[str, Any]:
    return {f"c{i}": ps.Shuffle(MemorySource([{"n": j} for j in range(9 + i)]), i, lanes=lanes) for i in range(count)}


@pytest.mark.parametrize("lanes", [1, 8, 24])
def test_the_printed_counts_are_in_every_block(lanes: int) -> None:
    weights = {"c0": 0.05, "c1": 0.25, "c2": 0.7}
    blend = ps.Blend(children(3, lanes), weights, 5)
    size = sum(blend.counts.values())
    assert all(f"{count:,} of {size:,}" in str(blend) for count in blend.counts.values())
    for lane in range(lanes):
        for block in (0, 1, 17, FAR // size):
            positions = (block * size + np.arange(size)) * lanes + lane
            owner, _ = blend.split(positions)
            assert np.bincount(owner).tolist() == list(blend.counts.values())


@pytest.mark.parametrize("lanes", [1, 8, 24])
def test_shares_drift_by_less_than_a_block(lanes: int) -> None:
    blend = ps.Blend(children(4, lanes), {"c0": 1, "c1": 2.5, "c2": 10, "c3": 0.3}, 5)
    for begin in (0, FAR // lanes * lanes):
        owner, inner = blend.split(begin + np.arange(6 * blend.block_size * lanes))
        for lane in range(lanes):
            for child, count in enumerate(blend.counts.values()):
                mine = owner[lane::lanes] == child
                # How many of the child come before each place of this lane, counted from position 0.
                before = inner[lane::lanes][mine][0] // lanes + np.cumsum(mine) - mine
                exact = (begin // lanes + np.arange(len(mine))) * count / blend.block_size
                assert np.abs(before - exact).max() <= count
                # Each place of the child comes, in order, and none twice.
                assert np.diff(inner[lane::lanes][mine]).tolist() == [lanes] * (int(mine.sum()) - 1)


@pytest.mark.parametrize("lanes", [1, 8, 24])
def test_at_a_million_million_it_equals_brute_force(lanes: int) -> None:
    weights = {"c0": 3, "c1": 4, "c2": 1, "c3": 8}
    streams = children(4, lanes)
    blend = ps.Blend(streams, weights, 11)
    names = [name for name, weight in weights.items() for _ in range(weight)]
    assert blend.block_size == len(names) == 16
    for position in range(FAR, FAR + 16 * lanes, 5):
        place, lane = divmod(position, lanes)
        block, within = divmod(place, 16)
        key = subkey(subkey(derive_key(11, "blend"), lane), block)
        held = [""] * 16
        for slot, name in enumerate(names):
            held[permute_one(slot, 16, key)] = name
        name = held[within]
        own = (block * weights[name] + held[:within].count(name)) * lanes + lane
        at, expected = blend.locate(position), streams[name].locate(own)
        assert (at.path, at.epoch, at.index) == ((name,), expected.epoch, expected.index)
        assert blend[position] == streams[name][own]


def test_a_thousand_random_weights_lose_no_place() -> None:
    rng = np.random.default_rng(20)
    refused = 0
    for case in range(1000):
        weights = 10.0 ** rng.uniform(-3, 1, rng.integers(1, 40))
        try:
            counts = list(block_counts({str(i): weight for i, weight in enumerate(weights)}).values())
        except ConfigError:
            refused += 1
            continue
        size = sum(counts)
        assert min(counts) > 0
        assert size & (size - 1) == 0
        assert size <= 1 << 16
        shares = [Fraction(float(weight)) / Fraction(float(weights.sum())) for weight in weights]
        if size < 1 << 16:
            assert all(
                abs(count - share * size) <= share * size / 100 for count, share in zip(counts, shares, strict=True)
            )
        lanes = int(rng.choice([1, 8, 24]))
        lane, block = int(rng.integers(lanes)), int(rng.integers(10**12)) // size
        # A whole block, cut short where it is long.
        positions = (block * size + np.arange(min(size, 2048))) * lanes + lane
        owner, inner = BlockPlaces(counts, case, lanes).split(positions)
        assert (inner >= 0).all()
        for child in np.unique(owner).tolist():
            mine = inner[owner == child]
            first = block * counts[child] * lanes + lane
            assert mine.tolist() == list(range(first, first + lanes * len(mine), lanes))
            assert len(mine) <= counts[child]
        if size <= 2048:
            assert np.bincount(owner, minlength=len(counts)).tolist() == counts
    assert refused < 100

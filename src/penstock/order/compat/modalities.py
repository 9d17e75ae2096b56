"""Bit-exact orders of Modalities, without torch and without lists of Python integers.

They use three walks over a table of places: `torch.randperm` (its samplers), Python's `random.shuffle`
(`shuffle_tokenized_data`, `shuffle_jsonl_data`) and numpy's shuffle of a list (its shuffled chunks). Random words are
drawn in chunks, and the walk is done in vectorised stretches. Checked against torch 2.13, Python 3.11 and numpy 2.4.

Memory: 4 bytes per place (8 from 2^32 places on), and a few MB.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_indices, as_position, as_positions
from penstock._kinds import Derived
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.order.fisher_yates import swap_walk
from penstock.order.ordered import OrderedStream, T
from penstock.types import IntArray

VERSION = "modalities-1"

# Below this many places torch draws one 32-bit word per step, from it on two.
TORCH_WIDE = ((1 << 32) - 1) // 20

_CHUNK = 1 << 16

Words = Callable[[int], NDArray[np.uint32]]
"""The next k words of 32 bits of a generator."""

Values = Callable[[NDArray[np.uint32], int], IntArray]
"""Words (one or two per value) and a number of bits → candidates with that many bits, int64."""


def python_shuffle(n: int, seed: int) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): `list(range(n))` after `random.Random(seed).shuffle`."""
    places = _identity(n)
    for first, targets in python_targets(n - 1, seed):
        swap_walk(places, first, targets, descending=True)
    return places


def numpy_list_shuffle(n: int, seed: int) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): `list(range(n))` after numpy's `default_rng(seed).shuffle`.

    Raises:
        ConfigError: the seed is negative, which numpy doesn't support.
    """
    places = _identity(n)
    for first, targets in numpy_targets(n - 1, seed):
        swap_walk(places, first, targets, descending=True)
    return places


def python_targets(last: int, seed: int) -> Iterator[tuple[int, IntArray]]:
    """Yield runs of `(i, targets)` for i = `last` … 1, as drawn by `random.Random(seed).shuffle`.

    A target is `getrandbits(k)` with the k bits of i + 1, drawn again while it is above i.
    """

    def values(words: NDArray[np.uint32], bits: int) -> IntArray:
        if bits <= 32:
            return (words >> np.uint32(32 - bits)).astype(np.int64)
        low, high = words[0::2].astype(np.int64), words[1::2].astype(np.int64)
        return low | (high >> (64 - bits)) << 32

    bits = np.random.MT19937()
    state = random.Random(operator.index(seed)).getstate()[1]
    _set_mt19937(bits, np.array(state[:-1], dtype=np.uint32), state[-1])
    return _targets(_mt19937_words(bits), values, last, bits_above=1)


def numpy_targets(last: int, seed: int) -> Iterator[tuple[int, IntArray]]:
    """Yield runs of `(i, targets)` for i = `last` … 1, as drawn by numpy for a list.

    A target is the low bits of the next word, as many as i has, drawn again while it is above i; words are the
    halves of PCG64's output, the lower one first.
    """

    def values(words: NDArray[np.uint32], bits: int) -> IntArray:
        if bits <= 32:
            return (words & np.uint32((1 << bits) - 1)).astype(np.int64)
        low, high = words[0::2].astype(np.int64), words[1::2].astype(np.int64)
        return low | (high & ((1 << (bits - 32)) - 1)) << 32

    seed = operator.index(seed)
    if seed < 0:
        raise ConfigError("numpy's generator doesn't accept negative seeds", found=seed, expected="0 or more")
    generator = np.random.PCG64(seed)

    def words(count: int) -> NDArray[np.uint32]:
        return generator.random_raw(-(-count // 2)).astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)

    return _targets(words, values, last, bits_above=0)


def _targets(words: Words, values: Values, last: int, *, bits_above: int) -> Iterator[tuple[int, IntArray]]:
    """Yield targets in `[0, i]` for i = `last` … 1: candidates with the bits of `i + bits_above`, the first fitting."""
    rest = np.empty(0, dtype=np.uint32)
    i = last
    while i > 0:
        bits = (i + bits_above).bit_length()
        width = 1 if bits <= 32 else 2
        steps_of_these_bits = i + bits_above + 1 - (1 << (bits - 1))
        count = min(_CHUNK, i // 4 + 1)
        if len(rest) < count * width:
            rest = np.concatenate([rest, words(_CHUNK * width)])
        candidates = values(rest[: count * width], bits)
        taken = _fitting(candidates, i + 1)[:steps_of_these_bits]
        # Words after the last step of these bits belong to the next ones.
        used = int(taken[-1]) + 1 if len(taken) == steps_of_these_bits else count
        rest = rest[used * width :]
        if len(taken):
            yield i, candidates[taken]
            i -= len(taken)


def _fitting(candidates: IntArray, bound: int) -> IntArray:
    """Return int64[k]: the accepted candidates; each one lowers the bound for the next by 1."""
    fits = candidates < bound
    while True:
        # A candidate's bound depends only on its predecessors, so the first ones are right after each round.
        again = candidates < bound - (np.cumsum(fits) - fits)
        if np.array_equal(again, fits):
            return np.flatnonzero(fits)
        fits = again


def torch_randperm(n: int, seed: int, *, wide_from: int = TORCH_WIDE) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): `torch.randperm(n)` of a CPU generator after `manual_seed(seed)`.

    Args:
        n: number of places.
        seed: -2^63 to 2^64 - 1; torch uses its low 32 bits.
        wide_from: the number of places from which torch uses its other algorithm; only tests change it.

    Raises:
        ConfigError: torch doesn't support the seed.
    """
    seed = operator.index(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise ConfigError("torch's generator doesn't accept this seed", found=seed, expected="-2^63 to 2^64 - 1")
    bits = np.random.MT19937()
    state = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False)["state"]
    _set_mt19937(bits, state["key"], state["pos"])
    words = _mt19937_words(bits)
    places = _identity(n)
    for start in range(0, n, _CHUNK):
        steps = np.arange(start, min(n, start + _CHUNK))
        if n < wide_from:
            # The last place draws nothing: it would swap with itself.
            steps = steps[steps < n - 1]
            swap_walk(places, start, steps + words(len(steps)) % (n - steps))
        else:
            # Inside out: place i takes the value at its target among the places up to i, which takes i.
            high, low = words(2 * len(steps)).astype(np.uint64).reshape(-1, 2).T
            targets = ((high << np.uint64(32)) | low) % (steps + 1).astype(np.uint64)
            swap_walk(places, start, targets.astype(np.int64))
    return places


def _set_mt19937(bits: np.random.MT19937, key: NDArray[np.uint32], place: int) -> None:
    bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": int(place)}}


def _mt19937_words(bits: np.random.MT19937) -> Words:
    def words(count: int) -> NDArray[np.uint32]:
        return bits.random_raw(count).astype(np.uint32)

    return words


def _identity(n: int) -> NDArray[Any]:
    if n < 0:
        raise ConfigError("the number of positions can't be negative", found=n, expected="0 or more")
    return np.arange(n, dtype=np.uint32 if n < 1 << 32 else np.int64)


def modalities_order(n: int, seed: int, epoch: int = 0, derived: Derived | None = None) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): the shuffled order of Modalities' samplers, read-only.

    Args:
        n: samples of the dataset.
        seed: seed of the sampler; only `seed + epoch` matters, as in the original.
        epoch: epoch of the sampler.
        derived: stores the order in a mapped file, once per host; by default it is kept in this process.

    Raises:
        ConfigError: torch doesn't support the seed.
    """
    dtype = "uint32" if n < 1 << 32 else "int64"
    total = seed + epoch
    if derived is None:
        order = torch_randperm(n, total)
        order.flags.writeable = False
        return order
    # Only the low 32 bits matter, and are part of a file's name.
    key = f"{VERSION}-{n}-{total & 0xFFFFFFFF}"
    return derived.array(key, dtype, lambda: torch_randperm(n, total))


@dataclass(frozen=True, slots=True)
class RankShare:
    """One rank's samples of an epoch, as divided by Modalities' resumable sampler.

    The first `skip` places of the order are skipped. Rank r takes every `world`-th of the others, from the r-th on.
    If they can't be divided evenly, the last ones are dropped, or the order's first places are repeated.

    Attributes:
        n: samples of the dataset.
        rank, world: data-parallel rank and number of ranks.
        drop_last: drop samples instead of repeating some.
        skip: global samples consumed before.

    Raises:
        ConfigError: the rank is outside `[0, world)`, or `skip` outside `[0, n]`.
    """

    n: int
    rank: int
    world: int
    drop_last: bool = False
    skip: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError("no such rank", found=f"rank {self.rank}", expected=f"0 to {self.world - 1}")
        if not 0 <= self.skip <= self.n:
            raise ConfigError("can't skip this many samples", found=self.skip, expected=f"0 to {self.n}")

    def __len__(self) -> int:
        left = self.n - self.skip
        return left // self.world if self.drop_last else -(-left // self.world)

    def places(self, start: int = 0, stop: int | None = None) -> IntArray:
        """Return int64[stop - start]: places in the order of the rank's samples `[start, stop)`."""
        start, stop, _ = slice(start, stop).indices(len(self))
        places = self.rank + np.arange(start, stop, dtype=np.int64) * self.world
        left = self.n - self.skip
        return np.where(places < left, places + self.skip, (places - left) % max(self.n, 1))


class ModalitiesOrder:
    """Order of Modalities' samplers, endless: epoch e is `torch.randperm` from `seed + e`.

    An `Order` except for its memory: 4 bytes per sample and epoch, in mapped files with `derived`.
    """

    version = VERSION

    def __init__(self, size: int, seed: int, derived: Derived | None = None) -> None:
        if size < 1:
            raise ConfigError("an order needs at least one sample", found=size, expected="1 or more")
        self.size = size
        self.seed = operator.index(seed)
        self._derived = derived
        self._epochs: dict[int, NDArray[Any]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (ModalitiesOrder, (self.size, self.seed, self._derived))

    def order(self, positions: IntArray, /) -> IntArray:
        positions = as_positions(positions)
        indices = np.empty(len(positions), dtype=np.int64)
        epochs = positions // self.size
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            indices[rows] = self._of_epoch(epoch)[positions[rows] - epoch * self.size]
        return indices

    def order_one(self, position: int, /) -> int:
        epoch, place = divmod(as_position(position), self.size)
        return int(self._of_epoch(epoch)[place])

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in `epoch`; uses 8 bytes per sample while it runs."""
        epoch = as_position(epoch)
        places = np.empty(self.size, dtype=np.int64)
        places[self._of_epoch(epoch)] = np.arange(self.size)
        return places[as_indices(indices, self.size)] + epoch * self.size

    def params(self) -> dict[str, Any]:
        """Return all parameters of the order except `size`, as plain JSON."""
        return {"seed": self.seed}

    def _of_epoch(self, epoch: int) -> NDArray[Any]:
        known = self._epochs
        if epoch not in known:
            # Two epochs are kept: batches span both.
            latest = list(known.items())[-1:]
            known = {**dict(latest), epoch: modalities_order(self.size, self.seed, epoch, self._derived)}
            self._epochs = known
        return known[epoch]


def ModalitiesShuffle(source: Source[T], seed: int, derived: Derived | None = None) -> OrderedStream[T]:
    """Return an endless stream of `source` in the order of a shuffled Modalities run.

    Position p of an epoch is the p-th sample of that epoch in the run, over all ranks.

    Raises:
        ConfigError: the source is empty.
    """
    return OrderedStream("ModalitiesShuffle", source, ModalitiesOrder(len(source), seed, derived), 1)

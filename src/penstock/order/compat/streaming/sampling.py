"""Bit-exact weights of streams and sampling of an epoch from their shards, as in MosaicML Streaming.

A stream is defined by the sizes of its shards. Ids count over all streams, one after another.

Memory: 4 bytes per sample (8 from 2^32 on) for the drawn ids, and as much per pick while part of a stream is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import IntArray

_PICKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Weight:
    """Amount of a stream per epoch; at most one is set.

    Attributes:
        proportion: share of the epoch, relative to the other streams' proportions.
        repeat: number of times that the stream is taken.
        choose: samples that are taken.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in self.as_dict().items() if value is not None}
        if len(given) > 1:
            raise ConfigError("a stream needs one weight", found=", ".join(given), expected="one of them")
        for name, value in given.items():
            if not value >= 0:
                raise ConfigError(f"{name} can't be negative", found=value, expected="0 or more")

    def as_dict(self) -> dict[str, float | int | None]:
        return {"proportion": self.proportion, "repeat": self.repeat, "choose": self.choose}


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Samples of each stream per epoch.

    Attributes:
        choose: int64[streams]: samples.
        proportions: float64[streams]: shares of the epoch, by which batches are divided.
    """

    choose: IntArray
    proportions: NDArray[np.float64]

    @property
    def epoch_size(self) -> int:
        return int(self.choose.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Samples of an epoch before they are shuffled.

    Attributes:
        units: int64[k]: sizes of the runs that are shuffled as one: shards, or parts of them.
        ids: uint32[n] (int64 from 2^32 - 1 samples on): the samples, run after run; None for `first`, `first` + 1, …
        first: the first sample if `ids` is None.
    """

    units: IntArray
    ids: NDArray[Any] | None
    first: int
    dtype: np.dtype[Any]


def shares_of(sizes: IntArray, weights: Sequence[Weight], epoch_size: int | None, seed: int) -> Shares:
    """Return the samples of each stream per epoch.

    Args:
        sizes: int64[streams]: samples of each, at least 1.
        weights: weight of each: all by proportion, or none.
        epoch_size: samples of an epoch, by proportions or without weights; by default all.
        seed: determines which streams get the samples lost by rounding.

    Raises:
        ConfigError: proportions are mixed with others, an epoch size with `repeat` or `choose`, or the epoch is empty.
    """
    relative = [weight.proportion is not None for weight in weights]
    if any(relative) != all(relative):
        raise ConfigError(
            "proportion can't be combined with other weights", expected="a proportion for all streams, or none"
        )
    given = any(value is not None for weight in weights for value in weight.as_dict().values())
    if all(relative) or (epoch_size and not given):
        parts = np.array([weight.proportion for weight in weights] if all(relative) else sizes, dtype=np.float64)
        shares = _divided(parts, epoch_size or int(sizes.sum()), seed)
    elif epoch_size:
        raise ConfigError("epoch_size only works with proportions or without weights", found=f"epoch_size={epoch_size}")
    else:
        choose = [_absolute(weight, int(size)) for weight, size in zip(weights, sizes, strict=True)]
        total = max(1, sum(choose))
        shares = Shares(np.array(choose, dtype=np.int64), np.array(choose, dtype=np.int64) / total)
    if shares.epoch_size < 1:
        raise ConfigError("an epoch has no samples", found=f"choose={shares.choose.tolist()}")
    return shares


def drawn_ids(
    shards: Sequence[IntArray],
    chosen: Sequence[int],
    streams: range,
    *,
    granularity: int,
    seed: int,
    epoch: int,
    changes: bool,
    balanced: bool,
) -> Drawn:
    """Return the samples that an epoch takes from some streams.

    Args:
        shards: shards of each stream, int64[shards]: samples.
        chosen: samples taken of each stream.
        streams: the streams to draw from, one after another.
        granularity: samples of a shard taken at a time, for streams taken in part.
        seed: seed of the run.
        epoch: used as `seed + epoch`.
        changes: whether the shards of a part change with the epoch.
        balanced: whether the samples of a shard taken in part change.
    """
    rng = np.random.default_rng(seed + epoch if balanced else seed)
    offsets = np.concatenate([[0], np.cumsum([int(sizes.sum()) for sizes in shards])]).tolist()
    dtype = np.dtype(np.uint32 if offsets[-1] < (1 << 32) - 1 else np.int64)
    sizes = np.concatenate([shards[stream] for stream in streams])
    kept = sizes > 0
    draw_seed = seed + epoch if changes else seed
    chooses = np.concatenate([chosen_of_shards(shards[s], int(chosen[s]), granularity, draw_seed) for s in streams])
    if np.array_equal(chooses, sizes):
        return Drawn(sizes[kept], None, offsets[streams[0]], dtype)
    begins = np.concatenate([offsets[s] + np.cumsum(shards[s]) - shards[s] for s in streams])
    ids = np.empty(int(chooses[kept].sum()), dtype=dtype)
    units: list[int] = []
    place = 0
    for begin, size, count in zip(begins[kept].tolist(), sizes[kept].tolist(), chooses[kept].tolist(), strict=True):
        times, rest = divmod(count, size)
        ids[place : place + times * size].reshape(times, size)[:] = np.arange(begin, begin + size)
        place += times * size
        if rest:
            ids[place : place + rest] = begin + np.sort(rng.choice(size, rest, replace=False))
            place += rest
        units += [size] * times + [rest] * (rest > 0)
    return Drawn(np.array(units, dtype=np.int64), ids, 0, dtype)


def chosen_of_shards(sizes: IntArray, choose: int, granularity: int, seed: int) -> IntArray:
    """Return int64[shards]: samples taken of each shard of a stream.

    Args:
        sizes: int64[shards]: samples of each; at least one in total.
        choose: samples taken in total.
        granularity: samples taken of one shard at a time.
        seed: determines which.

    Raises:
        ConfigError: the granularity is below 1.
    """
    if granularity < 1:
        raise ConfigError("unknown sampling_granularity", found=granularity, expected="1 or more")
    sizes = np.asarray(sizes, dtype=np.int64)
    total = int(sizes.sum())
    if choose % total == 0:
        return sizes * (choose // total)
    picks = -(-sizes // granularity)
    last_pick = np.cumsum(picks)
    order = np.arange(last_pick[-1], dtype=np.uint32 if last_pick[-1] < 1 << 32 else np.int64)
    np.random.default_rng(seed).shuffle(order)
    short = _last_picks(sizes, picks, granularity)
    out = sizes * (choose // total)
    left = choose % total
    for first in range(0, len(order), _PICKS):
        pick = order[first : first + _PICKS].astype(np.int64)
        shard = np.searchsorted(last_pick, pick, side="right")
        taken = np.where(pick == last_pick[shard] - 1, short[shard], granularity)
        before = np.cumsum(taken) - taken
        taken = np.clip(left - before, 0, taken)
        np.add.at(out, shard, taken)
        left -= int(taken.sum())
        if left <= 0:
            break
    return out


def _last_picks(sizes: IntArray, picks: IntArray, granularity: int) -> IntArray:
    """Return int64[shards]: samples of each shard's last pick."""
    last = sizes - (picks - 1) * granularity
    # In the original, an empty shard writes a full pick over the last one of the shard before it.
    last[:-1][sizes[1:] == 0] = granularity
    return last


def _divided(parts: NDArray[np.float64], epoch_size: int, seed: int) -> Shares:
    if not parts.sum() > 0:
        raise ConfigError("all proportions are 0", expected="at least one above 0")
    proportions = parts / parts.sum()
    choose = (epoch_size * proportions).astype(np.int64)
    left = epoch_size - int(choose.sum())
    choose[np.random.default_rng(seed).choice(len(parts), left, replace=False)] += 1
    return Shares(choose, proportions)


def _absolute(weight: Weight, size: int) -> int:
    if weight.repeat is not None:
        return int(weight.repeat * size)
    return size if weight.choose is None else int(weight.choose)

"""Finite passes of a stream, how they are cut into batches, and what makes the batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import GeneratorType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_indices
from penstock._digest import digest
from penstock.abc import Source
from penstock.compat.energon.encoded import SAMPLE, TURN, Filled
from penstock.compat.energon.stages import Group
from penstock.compat.energon.work import OF_BATCH
from penstock.compat.energon.worker import WorkerConfig, batch_index, begin, end
from penstock.cook.cooking import position_of
from penstock.errors import ConfigError
from penstock.types import Batch, IntArray, Sample, Schema


class BatchMaker:
    """Function from columns of samples to (batch, bool[k]: which samples count); None without samples.

    Args:
        encoder: task encoder with `batch` and `encode_batch`.
        config: config of the run.
        batches: False delivers single samples.
        turns: number of samples, or groups, of this rank per batch.
    """

    def __init__(self, encoder: Any, config: WorkerConfig, batches: bool, turns: int) -> None:
        self._encoder = encoder
        self._config = config
        self._batches = batches
        self._turns = turns

    def __call__(self, columns: Mapping[str, Any]) -> tuple[Any, NDArray[np.bool_]]:
        samples: list[Any] = [one[0] for one in columns[SAMPLE]]
        first = samples[0]
        if isinstance(first, Cut):
            number, counts, samples = first.number, first.counts, list(first.samples)
            if not samples:
                return None, _all(counts, 0)
        else:
            number, counts = int(columns[TURN][0]) // self._turns, True
        if isinstance(first, Group):
            samples = list(first.samples)
        elif not self._batches:
            return samples[0], _all(counts, 1)
        return self.batch(samples, number), _all(counts, len(samples))

    def batch(self, samples: list[Any], number: int) -> Any:
        """Return the batch of some samples.

        Args:
            samples: one or more.
            number: number of the batch on this rank.
        """
        before = begin(self._config, batch=number, index=number)
        try:
            batch = self._encoder.batch(samples)
            made = batch if isinstance(batch, GeneratorType) else self._encoder.encode_batch(batch)
        finally:
            end(before)
        if isinstance(made, GeneratorType):
            found = "a generator"
            raise ConfigError("batch and encode_batch must return one batch each", found=found)
        return made


@functools.lru_cache
def _all(value: bool, samples: int) -> NDArray[np.bool_]:
    """Return bool[samples], read-only: all batches of this size share it."""
    valid = np.full(samples, value, np.bool_)
    valid.flags.writeable = False
    return valid


@dataclass(frozen=True, slots=True)
class Key:
    """Content of a restore key of a sample.

    Attributes:
        output: number of the output, if one sample has several.
        position: position of the raw sample, if it isn't from a lane.
        of: batch and row for which it was encoded, if they don't follow from the position.
        lane: number of the lane, window, offset in it, and outputs of the lane before the window.
    """

    output: int
    position: int = 0
    of: tuple[int, int] | None = None
    lane: tuple[int, int, int, int] | None = None


def read_key(key: Any) -> Key:
    """Parse a restore key; see `Key`.

    Raises:
        ConfigError: not a key of a sample of this loader.
    """
    output, of, rest = 0, None, key
    while isinstance(rest, (tuple, list)) and rest:
        kind, *more = cast(Sequence[Any], rest)
        if kind == "output" and len(more) == 2:
            output, rest = int(more[0]), more[1]
        elif kind == OF_BATCH and len(more) == 3:
            of, rest = (int(more[0]), int(more[1])), more[2]
        elif kind == "lane" and len(more) == 4:
            lane, window, offset, before = map(int, more)
            return Key(output, lane=(lane, window, offset, before))
        else:
            return Key(output, position_of(rest), of)
    raise ConfigError("not a restore key of this loader", found=repr(key)[:120])


class Pass:
    """One epoch of a stream as a finite source of samples: sample i is position `number · size + i`."""

    def __init__(self, stream: Filled, size: int, number: int) -> None:
        self.stream = stream
        self.size = size
        self.number = number

    @property
    def schema(self) -> Schema:
        return self.stream.schema

    @property
    def fingerprint(self) -> str:
        return digest("pass", self.number, self.stream.fingerprint)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int, /) -> Sample:
        return {SAMPLE: self.get_batch([index])[SAMPLE][0]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        return self.stream.get_batch(as_indices(indices, self.size) + self.number * self.size)

    def children(self) -> Mapping[str, Source[Any]]:
        return {}

    def recipe(self) -> dict[str, Any]:
        return {"kind": "pass", "number": self.number, "stream": self.stream.recipe()}


@dataclass(frozen=True)
class Shares:
    """Division of the remaining samples of a pass into batches.

    Rank r has the samples r, r + world, …. Its workers have shares of these, and each ends with a batch that may be
    short, as in Energon. Every rank gets the same number of batches: if a rank has one sample less than others, one of
    its batches is shorter; if all of its batches have one sample, the last one is empty.

    Attributes:
        left: number of remaining samples of all ranks.
        world: number of ranks.
        workers: number of workers per rank, 1 or more.
        batch_size: samples per full batch.
        drop_last: drop batches that can't be full on all ranks.
    """

    left: int
    world: int
    workers: int
    batch_size: int
    drop_last: bool

    @cached_property
    def sizes(self) -> IntArray:
        """int64[batches]: samples of each batch, on ranks that have the most."""
        if self.drop_last:
            return np.full(self.left // (self.batch_size * self.world), self.batch_size, np.int64)
        share, more = divmod(-(-self.left // self.world), self.workers)
        own = np.array([share + (turn < more) for turn in turns(self.workers)], np.int64)
        rounds = np.arange(-(-int(own.max()) // self.batch_size), dtype=np.int64)
        sizes = np.clip(own[None, :] - rounds[:, None] * self.batch_size, 0, self.batch_size).ravel()
        return sizes[sizes > 0]

    @cached_property
    def starts(self) -> IntArray:
        """int64[batches + 1]: samples of the rank before each batch, on ranks that have the most."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])

    @cached_property
    def long_ranks(self) -> int:
        """Return how many ranks have the most samples: the first ones."""
        return self.world if self.drop_last else self.left % self.world or self.world

    @cached_property
    def shortened(self) -> int:
        """Return the batch that holds one sample less on all other ranks."""
        several = np.flatnonzero(self.sizes > 1)
        return int(several[-1]) if len(several) else len(self.sizes) - 1

    def __len__(self) -> int:
        return len(self.sizes)

    def samples(self, rank: int, batch: int) -> IntArray:
        """int64[k]: the remaining samples in a batch; none for an empty batch."""
        start, stop = int(self.starts[batch]), int(self.starts[batch + 1])
        if rank >= self.long_ranks:
            start, stop = start - (batch > self.shortened), stop - (batch >= self.shortened)
        return np.arange(start, stop, dtype=np.int64) * self.world + rank

    def taken(self, batches: int) -> int:
        """Return the samples of all ranks in their first batches: always the first of the remaining ones."""
        start = int(self.starts[batches])
        if batches <= self.shortened or not batches:
            return start * self.world
        return (start - 1) * self.world + self.long_ranks


def turns(workers: int) -> list[int]:
    """Return each worker's turn to get a left-over sample: the bits of its number, reversed."""
    width = max(1, (workers - 1).bit_length())
    order = sorted(range(workers), key=lambda worker: int(f"{worker:0{width}b}"[::-1], 2))
    return [order.index(worker) for worker in range(workers)]


@dataclass(frozen=True, slots=True)
class Cut:
    """Samples of a batch, and whether they count; a stand-in doesn't.

    Attributes:
        samples: the samples, at least one unless there is a single rank.
        counts: whether the samples count.
        number: number of the batch in its pass.
    """

    samples: tuple[Any, ...]
    counts: bool
    number: int


class CutPass:
    """Remainder of a pass in batches: item `world · b + r` is batch b of rank r.

    Skipped and failed samples are missing in their batch. With several ranks, an empty batch gets a stand-in that
    doesn't count, so that all ranks get the same number of batches.

    Args:
        whole: the pass.
        first: number of samples consumed before.
        batches_before: number of earlier batches of a rank, from which batches are counted.
        shares: division of the remaining samples.
    """

    def __init__(self, whole: Pass, first: int, batches_before: int, shares: Shares) -> None:
        self._given = (whole, first, batches_before, shares)
        self._whole = whole
        self._first = first
        self._before = batches_before
        self.shares = shares

    def __reduce__(self) -> tuple[object, ...]:
        return (CutPass, self._given)

    @property
    def schema(self) -> Schema:
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        return self._whole.fingerprint

    def __len__(self) -> int:
        return len(self.shares) * self.shares.world

    def __getitem__(self, index: int, /) -> Sample:
        return {SAMPLE: self.get_batch([index])[SAMPLE][0]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        return {SAMPLE: [(self._cut(index),) for index in as_indices(indices, len(self)).tolist()]}

    def _cut(self, index: int) -> Cut:
        batch, rank = divmod(index, self.shares.world)
        number = self._before + batch
        own = self.shares.samples(rank, batch) + self._first
        stream, base = self._whole.stream, self._whole.number * self._whole.size
        with batch_index(number, first=int(own[0]) + base if len(own) else None):
            boxes = stream.get_resolved_samples(stream.resolve(own + base)) if len(own) else []
            samples = tuple(one for box in boxes for one in box)
            if samples:
                return Cut(samples, counts=True, number=number)
        if self.shares.world == 1:
            return Cut((), counts=False, number=number)
        with batch_index(number):
            position = int(own[0]) + base if len(own) else base
            return Cut(stream.stand_in(position), counts=False, number=number)

    def children(self) -> Mapping[str, Source[Any]]:
        return {}

    def recipe(self) -> dict[str, Any]:
        return self._whole.recipe()

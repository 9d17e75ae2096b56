"""Deals each block of samples to ranks so that every step costs about the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from penstock._digest import array_digest, derive_key, digest
from penstock._index import as_position, as_positions
from penstock._tree import brief, html, line, tree
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.order.ordered import OrderedStream
from penstock.order.permutation import permute
from penstock.types import Batch, IntArray, Location, Schema

T = TypeVar("T")

VERSION = "balance-1"
_KEPT_BLOCKS = 16


class Balance(Generic[T]):
    """Stream that reorders samples so that all ranks get about the same amount of work per step.

    Positions are taken in blocks of `world * steps`. Within each block, samples are sorted by cost and divided into
    rows of `world` samples of similar cost; `seed` shuffles the rows. Samples never leave their block, so each one is
    still read once per epoch. A block that spans two epochs contains the end of one and the start of the next.

    Any world size can run and resume the stream, but only `world` and its divisors are balanced.

    Memory: 8 bytes per position for up to 16 blocks, plus the costs.

    Args:
        stream: `Shuffle` or `Sequential` over one source, with one lane.
        world: number of consecutive positions that should cost the same: data-parallel ranks × samples per rank.
        costs: int64[len(source)]: work per sample, in any unit. By default the source's own `costs`, which
            `PackByLength` provides.
        steps: rows per block. More rows balance better, but mix costs less evenly over time.
        seed: seed of the row order.

    Raises:
        ConfigError: The stream isn't an order over one source, has more than one lane, or doesn't match the costs.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> source = ps.open("corpus.pbin")
        >>> costs = np.diff(source.doc_starts)
        >>> balanced = ps.Balance(ps.Shuffle(source, seed=0), world=2, costs=costs, steps=3)
        >>> [len(balanced[position]["tokens"]) for position in range(6)]
        [5, 6, 9, 10, 7, 8]
    """

    def __init__(
        self, stream: OrderedStream[T], world: int, costs: IntArray | None = None, *, steps: int = 64, seed: int = 0
    ) -> None:
        if not isinstance(stream, OrderedStream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                "only an order over one source can be balanced",
                found=type(stream).__name__,
                expected="Shuffle(source, seed) or Sequential(source)",
            )
        if stream.lanes != 1:
            raise ConfigError("a balanced stream must have one lane", found=f"{stream.lanes} lanes")
        if world < 1 or steps < 1 or world * steps > 1 << 24:
            raise ConfigError(
                "world × steps is out of range", found=f"world={world}, steps={steps}", expected="1 to 2^24 in total"
            )
        known: Any = getattr(stream.source, "costs", None) if costs is None else np.asarray(costs)
        if known is None or known.shape != (stream.size,):
            raise ConfigError(
                "the costs don't match the source",
                found="none" if known is None else f"{known.dtype}{list(known.shape)}",
                expected=f"one for each of {stream.size} samples",
            )
        self.stream = stream
        self.world = world
        self.steps = steps
        self.seed = seed
        self._costs = known
        self._given = costs
        self.prefetch = stream.prefetch
        self._digest: str | None = None
        self._fingerprint: str | None = None
        self._blocks: OrderedDict[int, IntArray] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (self.stream, self.world, self._given, self.steps, self.seed))

    @property
    def lanes(self) -> int:
        """Number of lanes: 1."""
        return 1

    @property
    def schema(self) -> Schema:
        """That of the stream."""
        return self.stream.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the stream's fingerprint, the block, the seed and the costs."""
        if self._fingerprint is None:
            self._fingerprint = digest(self._own(), self.stream.fingerprint)
        return self._fingerprint

    def __getitem__(self, position: int, /) -> T:
        return self.stream[self.inner_one(position)]

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        return self.get_resolved(self.resolve(as_positions(positions)))

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        return self.stream.resolve(self.inner(positions))

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at resolved positions as columns."""
        return self.stream.get_resolved(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[T]:
        """Return the samples at resolved positions."""
        return self.stream.get_resolved_samples(resolved)

    def inner(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the corresponding positions in `stream`."""
        size = self.world * self.steps
        blocks, places = positions // size, positions % size
        found = np.empty(positions.shape, np.int64)
        for block in np.unique(blocks).tolist():
            at = blocks == block
            found[at] = block * size + self._places(block)[places[at]]
        return found

    def inner_one(self, position: int, /) -> int:
        """Return `inner` for one position."""
        return int(self.inner(np.array([as_position(position)], np.int64))[0])

    def locate(self, position: int, /) -> Location:
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        return replace(self.stream.locate(self.inner_one(position)), position=position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a position of the same epoch with a substitute for the sample at `position`."""
        other = self.stream.substitute(self.inner_one(position), attempt)
        size = self.world * self.steps
        block = other // size
        [place] = np.flatnonzero(self._places(block) == other % size).tolist()
        return block * size + place

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: costs, block size, and the stream up to the block's end."""
        size = self.world * self.steps
        return self._own(), {"stream": -(-stop // size) * size}

    def children(self) -> Mapping[str, Stream[Any]]:
        """Return the stream, under the name `stream`."""
        return {"stream": self.stream}

    def recipe(self) -> dict[str, Any]:
        """Return world, steps, seed and the stream's recipe as plain JSON."""
        return {**self._own(), "stream": self.stream.recipe()}

    def summary(self) -> str:
        """Return one line: world, steps and seed."""
        return line("Balance", {"world": self.world, "steps": self.steps, "seed": self.seed}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def _own(self) -> dict[str, Any]:
        if self._digest is None:
            self._digest = array_digest(self._costs)
        own = {"kind": "balance", "version": VERSION, "world": self.world, "steps": self.steps, "seed": self.seed}
        return {**own, "costs": self._digest}

    def _places(self, block: int) -> IntArray:
        """int64[world · steps]: the place in the stream's block of each place in this one."""
        with self._lock:
            found = self._blocks.get(block)
            if found is None:
                found = self._blocks[block] = self._dealt(block)
                if len(self._blocks) > _KEPT_BLOCKS:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end(block)
            return found

    def _dealt(self, block: int) -> IntArray:
        size = self.world * self.steps
        costs = np.asarray(self._costs[self.stream.order(np.arange(block * size, (block + 1) * size, dtype=np.int64))])
        rows = np.argsort(costs, kind="stable").reshape(self.steps, self.world)
        key = derive_key(self.seed, "balance", block)
        return rows[permute(np.arange(self.steps, dtype=np.int64), self.steps, key)].reshape(-1)


def _again(stream: OrderedStream[Any], world: int, costs: IntArray | None, steps: int, seed: int) -> Balance[Any]:
    return Balance(stream, world, costs, steps=steps, seed=seed)

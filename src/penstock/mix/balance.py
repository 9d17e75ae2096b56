"""Assignment of samples to ranks, so that every step costs about the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from penstock._access import capability
from penstock._digest import array_digest, derive_key
from penstock.errors import ConfigError
from penstock.node.over import Finder, MovedStream, StreamNode
from penstock.order.ordered import OrderedStream
from penstock.order.permutation import permute
from penstock.types import IntArray

T = TypeVar("T")

VERSION = "balance-1"
_KEPT_BLOCKS = 16


class Balance(MovedStream[T]):
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

    kind, version = "balance", VERSION
    stream: OrderedStream[T]

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
        known: Any = capability(stream.source, "costs") if costs is None else np.asarray(costs)
        if known is None or known.shape != (stream.size,):
            raise ConfigError(
                "the costs don't match the source",
                found="none" if known is None else f"{known.dtype}{list(known.shape)}",
                expected=f"one for each of {stream.size} samples",
            )
        super().__init__(stream)
        self.expect_lanes = None  # the stream has one lane
        self.world = world
        self.steps = steps
        self.seed = seed
        self._costs = known
        self._given = costs
        self._digest: str | None = None
        self._blocks: OrderedDict[int, IntArray] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(Balance, steps=self.steps, seed=self.seed), (self.stream, self.world, self._given))

    seeded = StreamNode.seeded  # unchanged: streams saved by version 0.2 store the seed of the balanced order

    def identity(self) -> tuple[Any, ...]:
        return ({"kind": self.kind, "version": VERSION, **self.own()}, self.stream.fingerprint)

    def inner(self, positions: IntArray, /) -> IntArray:
        size = self.world * self.steps
        blocks, places = positions // size, positions % size
        found = np.empty(positions.shape, np.int64)
        for block in np.unique(blocks).tolist():
            at = blocks == block
            found[at] = block * size + self._places(block)[places[at]]
        return found

    def position_of(self, inner: int, /) -> int:
        """Return the position of the stream's position `inner`, in the same block."""
        size = self.world * self.steps
        [place] = np.flatnonzero(self._places(inner // size) == inner % size).tolist()
        return inner // size * size + place

    def substitute(self, position: int, attempt: int, /) -> int:
        return self.position_of(self.stream.substitute(self.inner_one(position), attempt))

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        size = self.world * self.steps
        found = sorted(map(self.position_of, finder.positions(self.stream, -(-stop // size) * size)))
        return (position for position in found if position < stop)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: costs, block size, and the stream up to the block's end."""
        size = self.world * self.steps
        return {"kind": self.kind, "version": VERSION, **self.own()}, {"stream": -(-stop // size) * size}

    def own(self) -> dict[str, Any]:
        if self._digest is None:
            self._digest = array_digest(self._costs)
        return {"world": self.world, "steps": self.steps, "seed": self.seed, "costs": self._digest}

    def shown(self) -> dict[str, Any]:
        return {"world": self.world, "steps": self.steps, "seed": self.seed}

    def _places(self, block: int) -> IntArray:
        """Return int64[world · steps]: the place in the stream's block of each place in this block."""
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

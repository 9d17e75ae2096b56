"""Orders of a source: stored order, or a new one every epoch from a seed."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from penstock._arrays import as_indices, as_position, as_positions
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.node.blocks import blocks_of, preferred_mode
from penstock.order.blocks import OPEN_BLOCKS, BlockOrder
from penstock.order.lanes import check_lanes, lane_place_one, lane_places, positions_at, tape_starts
from penstock.order.ordered import OrderedStream, T
from penstock.order.permutation import GlobalOrder, check_size, size_of
from penstock.types import IntArray

Mode = Literal["global", "blocks"]


def Shuffle(
    source: Source[T],
    seed: int | None = None,
    *,
    mode: Mode | None = None,
    lanes: int = 1,
    open_blocks: int = OPEN_BLOCKS,
    block_size: int | None = None,
) -> OrderedStream[T]:
    """Return an endless stream of `source`, in a different order each epoch.

    `mode="global"` permutes all samples: best mixing, with random reads. `mode="blocks"` permutes the source's storage
    blocks and mixes a few of them at a time, so each block is read about once per epoch; each lane has its own blocks.
    See `BlockOrder`.

    Args:
        source: any source with at least one sample.
        seed: any integer. If None, the seed is 0, or comes from an enclosing `Blend`.
        mode: `"global"` or `"blocks"`. By default the source's preferred mode: blocks for remote and compressed data,
            otherwise global.
        lanes: number of lanes. Position p is in lane `p % lanes`.
        open_blocks: number of blocks mixed at a time (mode `"blocks"`).
        block_size: samples per block (mode `"blocks"`). By default the source's own blocks, or 4,096.

    Returns:
        A stream with positions 0, 1, …; epoch e is the positions `[e * len(source), (e + 1) * len(source))`.

    Raises:
        ConfigError: the source is empty or a stream, or an option is invalid.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> stream[0]["tokens"]
        array([601, 602, 603, 604, 605, 606, 607, 608, 609,   0], dtype=uint16)
        >>> sorted(stream.locate(position).index for position in range(6))
        [0, 1, 2, 3, 4, 5]
    """
    check_lanes(lanes)
    size = size_of(source)
    check_size(size)
    given, seed = seed, 0 if seed is None else operator.index(seed)
    chosen = preferred_mode(source) if mode is None else mode
    options = {"mode": chosen, "lanes": lanes, "open_blocks": open_blocks, "block_size": block_size}
    with_seed = partial(Shuffle, source, **options) if given is None else None
    if chosen == "global":
        return OrderedStream("Shuffle", source, GlobalOrder(size, seed), lanes, with_seed)
    if chosen == "blocks":
        order = BlockOrder(blocks_of(source, block_size), seed, lanes, open_blocks)
        written = {} if block_size is None else {"block_size": block_size}
        own = block_size is None
        return OrderedStream("Shuffle", source, order, lanes, with_seed, written, whole_blocks=own)
    raise ConfigError("unknown shuffle mode", found=repr(chosen), expected="'global' or 'blocks'")


VERSION = "sequential-1"


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """Stored order. With several lanes, each one walks a contiguous part of its own.

    Attributes:
        size: number of samples, 1 to 2^62.
        lanes: 1 or more.

    Examples:
        >>> import numpy as np
        >>> from penstock.order import SequentialOrder
        >>> SequentialOrder(6, lanes=2).order(np.arange(6))
        array([0, 3, 1, 4, 2, 5])
    """

    size: int
    lanes: int = 1
    version: str = field(default=VERSION, init=False)

    def __post_init__(self) -> None:
        check_size(self.size)
        check_lanes(self.lanes)

    def order(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the index in `[0, size)` at each position."""
        positions = as_positions(positions)
        if self.lanes == 1:
            return positions % self.size
        at = lane_places(positions, self.size, self.lanes)
        return at.start + at.place

    def order_one(self, position: int, /) -> int:
        """Return the index at `position`."""
        start, place, _, _ = lane_place_one(as_position(position), self.size, self.lanes)
        return start + place

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in `epoch`."""
        epoch = as_position(epoch)
        indices = as_indices(indices, self.size)
        if self.lanes == 1:
            return indices + epoch * self.size
        starts = tape_starts(epoch, self.size, self.lanes)
        lane = np.searchsorted(starts, indices, side="right") - 1
        return positions_at(lane, indices - starts[lane], epoch, self.size, self.lanes)

    def params(self) -> dict[str, Any]:
        """Return all parameters of the order except `size`, as plain JSON."""
        return {"lanes": self.lanes}


def Sequential(source: Source[T], lanes: int = 1) -> OrderedStream[T]:
    """Return an endless stream of `source` in stored order.

    Args:
        source: any source with at least one sample.
        lanes: number of lanes. Lane l walks the l-th contiguous part of the source in each epoch.

    Returns:
        A stream whose position p has sample `p % len(source)`, with one lane.

    Raises:
        ConfigError: the source is empty or a stream, or `lanes` is below 1.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Sequential(ps.open("corpus.pbin"))
        >>> [stream.locate(position).index for position in range(8)]
        [0, 1, 2, 3, 4, 5, 0, 1]
    """
    return OrderedStream("Sequential", source, SequentialOrder(size_of(source), lanes), lanes, whole_blocks=True)

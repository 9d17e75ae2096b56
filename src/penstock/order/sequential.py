"""Samples as they are stored, epoch after epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock._index import as_indices, as_position, as_positions
from penstock.abc import Source
from penstock.order.lanes import check_lanes, lane_place_one, lane_places, positions_at, tape_starts
from penstock.order.ordered import OrderedStream, T
from penstock.order.permutation import check_size, size_of
from penstock.types import IntArray

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

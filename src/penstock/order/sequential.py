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
    """Stored order; with several lanes each walks a contiguous part of its own.

    Attributes:
        size: samples in the source, 1 to 2^62.
        lanes: 1 or more.
    """

    size: int
    lanes: int = 1
    version: str = field(default=VERSION, init=False)

    def __post_init__(self) -> None:
        check_size(self.size)
        check_lanes(self.lanes)

    def order(self, positions: IntArray, /) -> IntArray:
        """int64[k]: index in `[0, size)` at each position."""
        positions = as_positions(positions)
        if self.lanes == 1:
            return positions % self.size
        at = lane_places(positions, self.size, self.lanes)
        return at.start + at.place

    def order_one(self, position: int, /) -> int:
        """Index at `position`."""
        start, place, _, _ = lane_place_one(as_position(position), self.size, self.lanes)
        return start + place

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """int64[k]: positions in `epoch` at which `indices` come."""
        epoch = as_position(epoch)
        indices = as_indices(indices, self.size)
        if self.lanes == 1:
            return indices + epoch * self.size
        starts = tape_starts(epoch, self.size, self.lanes)
        lane = np.searchsorted(starts, indices, side="right") - 1
        return positions_at(lane, indices - starts[lane], epoch, self.size, self.lanes)

    def params(self) -> dict[str, Any]:
        """Everything that decides the order besides `size`, as plain JSON."""
        return {"lanes": self.lanes}


def Sequential(source: Source[T], lanes: int = 1) -> OrderedStream[T]:
    """An endless stream of `source` in stored order.

    Args:
        source: at least one sample.
        lanes: with more than one, lane l of an epoch walks the l-th contiguous part of the source.

    Raises:
        ConfigError: the source is empty, or a stream, or `lanes` below 1.
    """
    return OrderedStream("Sequential", source, SequentialOrder(size_of(source), lanes), lanes, whole_blocks=True)

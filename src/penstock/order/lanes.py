"""Assignment of an epoch's positions to lanes, and of lanes to parts of the epoch's tape.

Position p is lane `p mod lanes`. The *tape* of an epoch is its n samples in some order; lane after lane takes a
contiguous part of it, exactly as long as the number of positions that the epoch gives to that lane. So positions and
places on the tape
are in one-to-one relation, for every order of the tape, every n and every number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.errors import ConfigError
from penstock.types import IntArray


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """Places of the positions of one epoch: int64[k] each.

    Attributes:
        start: start of the position's lane on the tape.
        place: place inside the lane's part of the tape.
        size: length of the lane's part.
    """

    start: IntArray
    place: IntArray
    size: IntArray
    lane: IntArray


def check_lanes(lanes: int) -> None:
    if lanes < 1:
        raise ConfigError("a stream needs at least one lane", found=lanes, expected="1 or more")


def lane_places(positions: IntArray, size: int, lanes: int) -> LanePlaces:
    """Return the places of `positions` (int64[k], of any epochs) in their lanes, for epochs of `size` samples."""
    within = positions % size
    first_lane = (positions - within) % lanes
    lane = positions % lanes
    start = _starts(lane, first_lane, size, lanes)
    return LanePlaces(start, within // lanes, _starts(lane + 1, first_lane, size, lanes) - start, lane)


def lane_place_one(position: int, size: int, lanes: int) -> tuple[int, int, int, int]:
    within = position % size
    lane, first_lane = position % lanes, (position - within) % lanes
    start = _start_one(lane, first_lane, size, lanes)
    return start, within // lanes, _start_one(lane + 1, first_lane, size, lanes) - start, lane


def tape_starts(epoch: int, size: int, lanes: int) -> IntArray:
    """Return int64[lanes + 1]: the start of each lane on the tape of `epoch`, and `size` at the end."""
    first_lane = np.full(lanes + 1, epoch * size % lanes, dtype=np.int64)
    return _starts(np.arange(lanes + 1, dtype=np.int64), first_lane, size, lanes)


def positions_at(lane: IntArray, place: IntArray, epoch: int, size: int, lanes: int) -> IntArray:
    """Return int64[k]: the positions of `epoch` at `place` in `lane`."""
    begin = epoch * size
    return begin + (lane - begin % lanes) % lanes + place * lanes


def _starts(lane: IntArray, first_lane: IntArray, size: int, lanes: int) -> IntArray:
    # An epoch begins in lane `first_lane`, so the next `size % lanes` lanes, cyclically, have one more.
    share, extra = divmod(size, lanes)
    ahead = lane - first_lane
    longer = np.clip(ahead, 0, extra) + np.clip(ahead + lanes, 0, extra) - np.minimum(lanes - first_lane, extra)
    return lane * share + longer


def _start_one(lane: int, first_lane: int, size: int, lanes: int) -> int:
    share, extra = divmod(size, lanes)
    ahead = lane - first_lane
    longer = min(max(ahead, 0), extra) + min(max(ahead + lanes, 0), extra) - min(lanes - first_lane, extra)
    return lane * share + longer

"""Shuffles with locality: whole storage blocks in random order, a few of them mixed at a time.

`blocks-1`, for an epoch of n samples in B blocks:

1. the blocks are permuted by (seed, epoch); concatenated, they are the epoch's tape;
2. each lane takes its contiguous part of the tape (`lanes.py`);
3. a lane's part is cut into windows of equal length (one sample more or less), about `open_blocks` mean blocks
   long, and each window is permuted by (seed, epoch, lane, window).

While a lane is in one window, only the blocks under that window are read, and every step has an inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._arrays import as_indices, as_position, as_positions
from penstock._digest import derive_key
from penstock.errors import ConfigError
from penstock.node.blocks import Blocks, EvenBlocks, StoredBlocks
from penstock.order.lanes import check_lanes, lane_place_one, lane_places, positions_at, tape_starts
from penstock.order.permutation import check_size, permute, permute_one, subkey, subkeys, unpermute
from penstock.types import IntArray

VERSION = "blocks-1"
OPEN_BLOCKS = 16
MOST_TAPES = 4
_LISTED_BLOCKS = 1 << 16  # up to this many, even blocks are listed too: a look-up is faster than arithmetic


@dataclass(frozen=True, slots=True)
class Tape:
    """Blocks of one epoch in order.

    Attributes:
        blocks: in the order of the tape: start and end of the j-th block on it.
        numbers: int64[B]: the j-th block; None if computed on demand.
    """

    epoch: int
    key: int
    blocks: Blocks
    numbers: IntArray | None

    def numbers_of(self, turns: IntArray) -> IntArray:
        """Return int64[k]: the blocks at these turns."""
        return permute(turns, self.blocks.count, self.key) if self.numbers is None else self.numbers[turns]

    def number_of(self, turn: int) -> int:
        return permute_one(turn, self.blocks.count, self.key) if self.numbers is None else int(self.numbers[turn])


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows around k places in lanes, int64[k] each."""

    number: IntArray
    start: IntArray
    size: IntArray


class BlockOrder:
    """Order that shuffles whole blocks by (seed, epoch) and mixes a few blocks at a time in each lane.

    Memory: 16 bytes per block for each of the last four epochs used, and the block starts; at most 5 MB for blocks of
    equal size. Threads may share it.

    Args:
        block_starts: int64[B + 1]: first sample of each block, and the number of samples; or the result of `blocks_of`.
        seed: any integer.
        lanes: 1 or more.
        open_blocks: mean number of blocks that are mixed at a time.

    Raises:
        ConfigError: there are no samples, `block_starts` is invalid, or `lanes` or `open_blocks` is below 1.

    Examples:
        >>> import numpy as np
        >>> from penstock.order import BlockOrder
        >>> order = BlockOrder(np.array([0, 4, 8, 12]), seed=0, open_blocks=1)
        >>> order.order(np.arange(12))
        array([ 0,  1,  3,  2, 10,  9,  8, 11,  4,  7,  5,  6])
    """

    version = VERSION

    def __init__(
        self, block_starts: IntArray | Blocks, seed: int, lanes: int = 1, open_blocks: int = OPEN_BLOCKS
    ) -> None:
        check_lanes(lanes)
        if open_blocks < 1:
            raise ConfigError(
                "at least one block must be open", found=f"open_blocks {open_blocks}", expected="1 or more"
            )
        blocks = _checked(block_starts)
        check_size(blocks.size)
        self.size = blocks.size
        self.seed = seed
        self.lanes = lanes
        self.open_blocks = open_blocks
        self._blocks = blocks
        window = max(1, open_blocks * self.size // blocks.count)
        self._windows_per_lane = max(1, self.size // lanes // window)
        self._block_key = derive_key(seed, "blocks", "block")
        self._window_key = derive_key(seed, "blocks", "window")
        self._tapes: tuple[Tape, ...] = ()
        self._borders: str | None = None

    def order(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the index in `[0, size)` at each position."""
        positions = as_positions(positions)
        if positions.size == 0:
            return positions
        first, last = int(positions.min()) // self.size, int(positions.max()) // self.size
        if first == last:
            return self._order_in(positions, first)
        epochs = positions // self.size
        out = np.empty(positions.shape, dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            out[chosen] = self._order_in(positions[chosen], epoch)
        return out

    def order_one(self, position: int, /) -> int:
        """Return the index at `position`."""
        position = as_position(position)
        epoch = position // self.size
        start, place, size, lane = lane_place_one(position, self.size, self.lanes)
        number, begin, length = _window_one(place, size, self._windows_per_lane)
        key = subkey(subkey(subkey(self._window_key, epoch), lane), number)
        on_tape = start + begin + permute_one(place - begin, length, key)
        tape = self._tape(epoch)
        turn = int(tape.blocks.block_of(on_tape))
        return int(self._blocks.start_of(tape.number_of(turn))) + on_tape - int(tape.blocks.start_of(turn))

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in `epoch`."""
        epoch = as_position(epoch)
        indices = as_indices(indices, self.size)
        tape = self._tape(epoch)
        block = self._blocks.block_of(indices)
        turn = unpermute(block, self._blocks.count, tape.key)
        on_tape = tape.blocks.start_of(turn) + indices - self._blocks.start_of(block)
        lane_starts = tape_starts(epoch, self.size, self.lanes)
        lane = np.searchsorted(lane_starts, on_tape, side="right") - 1
        place = on_tape - lane_starts[lane]
        mixed = self._mix(place, lane_starts[lane + 1] - lane_starts[lane], lane, epoch, inverse=True)
        return positions_at(lane, mixed, epoch, self.size, self.lanes)

    def params(self) -> dict[str, Any]:
        """Return all parameters of the order except `size`, as plain JSON; `blocks` is a digest of the block starts."""
        if self._borders is None:
            self._borders = self._blocks.digest()
        return {"mode": "blocks", "seed": self.seed, "open_blocks": self.open_blocks, "blocks": self._borders}

    def blocks_read(self, positions: IntArray) -> IntArray:
        """Return the blocks that contain the samples at `positions`, int64[m] ascending, each once."""
        return np.unique(self._blocks.block_of(self.order(positions)))

    def parts_read(self, positions: IntArray, world: int) -> tuple[IntArray, IntArray]:
        """Return the ranges of the blocks around the positions of one rank that this rank reads in an epoch.

        A block across a border of lanes is read in parts.

        Args:
            positions: int64[k], all `p ≡ rank (mod world)`. The first one determines the epoch.
            world: number of ranks, which divides the lanes.

        Returns:
            First samples and ends of the ranges, two int64[m].
        """
        epoch, rank = int(positions[0]) // self.size, int(positions[0]) % world
        blocks = self.blocks_read(positions[positions < (epoch + 1) * self.size])
        tape, lane_starts = self._tape(epoch), tape_starts(epoch, self.size, self.lanes)
        turns = unpermute(blocks, self._blocks.count, tape.key)
        begins, starts, stops = (
            self._blocks.start_of(blocks),
            tape.blocks.start_of(turns),
            tape.blocks.start_of(turns + 1),
        )
        first = np.searchsorted(lane_starts, starts, side="right") - 1
        last = np.searchsorted(lane_starts, stops - 1, side="right") - 1
        first += (rank - first) % world
        last -= (last - rank) % world
        low, high = np.maximum(lane_starts[first], starts), np.minimum(lane_starts[last + 1], stops)
        return begins + low - starts, begins + high - starts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tapes": ()}

    def _order_in(self, positions: IntArray, epoch: int) -> IntArray:
        tape = self._tape(epoch)
        at = lane_places(positions, self.size, self.lanes)
        on_tape = at.start + self._mix(at.place, at.size, at.lane, epoch, inverse=False)
        turn = tape.blocks.block_of(on_tape)
        return self._blocks.start_of(tape.numbers_of(turn)) + on_tape - tape.blocks.start_of(turn)

    def _mix(self, place: IntArray, lane_size: IntArray, lane: IntArray, epoch: int, *, inverse: bool) -> IntArray:
        """Return int64[k]: places in their lanes, moved inside their windows."""
        windows = _windows(place, lane_size, self._windows_per_lane)
        keys = subkeys(subkeys(subkey(self._window_key, epoch), lane), windows.number)
        move = unpermute if inverse else permute
        within = place - windows.start
        low, high = int(windows.size.min(initial=1 << 62)), int(windows.size.max(initial=0))
        if low >= high:
            return windows.start + move(within, high, keys)
        out = windows.start
        for size in range(low, high + 1):  # at most three sizes: lanes differ by one place, and so do windows
            chosen = np.flatnonzero(windows.size == size)
            out[chosen] += move(within[chosen], size, keys[chosen])
        return out

    def _tape(self, epoch: int) -> Tape:
        kept = self._tapes
        for tape in kept:
            if tape.epoch == epoch:
                return tape
        tape = _tape_of(self._blocks, epoch, subkey(self._block_key, epoch))
        self._tapes = (tape, *kept[: MOST_TAPES - 1])
        return tape


def _checked(given: IntArray | Blocks) -> Blocks:
    if isinstance(given, EvenBlocks):
        if given.count <= _LISTED_BLOCKS:
            return StoredBlocks(given.starts())
        return given
    starts = np.asarray(given.array if isinstance(given, StoredBlocks) else given, dtype=np.int64)
    if len(starts) < 2 or starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ConfigError("block_starts must increase from 0 to the number of samples")
    return StoredBlocks(starts)


def _tape_of(blocks: Blocks, epoch: int, key: int) -> Tape:
    if isinstance(blocks, EvenBlocks):
        turns = unpermute(blocks.odd, blocks.count, key)
        rising = np.argsort(turns)
        return Tape(epoch, key, EvenBlocks(blocks.even, blocks.count, turns[rising], blocks.sizes[rising]), None)
    numbers = permute(np.arange(blocks.count, dtype=np.int64), blocks.count, key)
    starts = np.zeros(blocks.count + 1, dtype=np.int64)
    np.cumsum(np.diff(blocks.array)[numbers], out=starts[1:])
    return Tape(epoch, key, StoredBlocks(starts), numbers)


def _windows(place: IntArray, lane_size: IntArray, count: int) -> _Windows:
    """Return the windows around `place` in lanes of `lane_size`, each cut into `count`."""
    share = lane_size // count
    extra = lane_size - share * count
    # The first `extra` windows have one place more than the others.
    border = extra * (share + 1)
    late = place >= border
    number = np.where(late, extra, 0) + np.where(late, place - border, place) // np.where(
        late, np.maximum(share, 1), share + 1
    )
    start = number * share + np.minimum(number, extra)
    return _Windows(number, start, share + (number < extra))


def _window_one(place: int, lane_size: int, count: int) -> tuple[int, int, int]:
    """Return `_windows` for one place: number, start, size."""
    share, extra = divmod(lane_size, count)
    border = extra * (share + 1)
    number = place // (share + 1) if place < border else extra + (place - border) // share
    return number, number * share + min(number, extra), share + (number < extra)

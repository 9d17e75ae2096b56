"""Child of each position of a blend: `blend-1`.

Position p is place `q = p // lanes` of lane `l = p mod lanes`. A lane's places come in blocks of equal length; block
`b = q // size` gives each child its count of places. Before mixing the places are ordered by child; `feistel-1`,
keyed by (seed, lane, block), moves slot s to place `permute(s)`. Then each child's places are numbered in
order: the n-th place of a child with c places is place `b·c + n` of the child's lane l, its position
`(b·c + n)·lanes + l`. So a child is read in its own order, and nothing before p has to be computed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import groups
from penstock._digest import derive_key
from penstock.order.permutation import permute, subkey, subkeys
from penstock.types import IntArray

VERSION = "blend-1"

PAGE = 1 << 12  # fewest places computed at once
SPARE_PAGES = 16
_MOST_COUNTED = 1 << 18

Slots = NDArray[np.uint16]


class BlockPlaces:
    """Position → (child, position of the child), and back. Threads may share it.

    Memory: the last `lanes + 16` pages of 4,096 places, or of one block if that is longer, at 2 bytes per place: 2 MiB
    for
    one lane at the longest block, 128 KiB for each further lane.

    Args:
        counts: places of each child per block, at least 1; their sum is a power of two up to 2^16.
        seed: any integer.
        lanes: 1 or more.
    """

    def __init__(self, counts: Sequence[int], seed: int, lanes: int) -> None:
        self.lanes = lanes
        self.counts: IntArray = np.array(counts, dtype=np.int64)
        self.starts: IntArray = np.cumsum([0, *counts], dtype=np.int64)
        self.size = int(self.starts[-1])
        self._owners = np.repeat(np.arange(len(counts), dtype=np.uint16), self.counts)
        self._page_size = max(PAGE, self.size)
        self._key = derive_key(seed, "blend")
        self._pages: dict[tuple[int, int], Slots] = {}
        self._lock = threading.Lock()

    def split(self, positions: IntArray) -> tuple[NDArray[np.uint16], IntArray]:
        """Return uint16[k] and int64[k]: the child of each position, and the position in that child."""
        lane = positions % self.lanes
        place = positions // self.lanes
        slot = self._slots(lane, place)
        owner = self._owners[slot]
        own_place = place // self.size * self.counts[owner] + slot - self.starts[owner]
        return owner, own_place * self.lanes + lane

    def split_one(self, position: int) -> tuple[int, int]:
        place, lane = divmod(position, self.lanes)
        page, within = divmod(place, self._page_size)
        slot = int(self._page(lane, page)[within])
        owner = int(self._owners[slot])
        own_place = place // self.size * int(self.counts[owner]) + slot - int(self.starts[owner])
        return owner, own_place * self.lanes + lane

    def position_of(self, owner: int, inner: int) -> int:
        own_place, lane = divmod(inner, self.lanes)
        block, number = divmod(own_place, int(self.counts[owner]))
        begin = block * self.size
        page, within = divmod(begin, self._page_size)
        slots = self._page(lane, page)[within : within + self.size]
        place = begin + int(np.flatnonzero(slots == int(self.starts[owner]) + number)[0])
        return place * self.lanes + lane

    def reads(self, stop: int) -> list[int]:
        """Return for each child an upper bound of its positions read in `[0, stop)`; 0 if none is read.

        Exact except with very many lanes of long blocks, where it may be up to a block per lane too high.
        """
        lanes = min(stop, self.lanes)
        if lanes * self.size > _MOST_COUNTED:
            blocks = -(-stop // (self.lanes * self.size))
            return (self.counts * blocks * self.lanes).tolist()
        below = np.zeros(len(self.counts), dtype=np.int64)
        for lane in range(lanes):
            block, rest = divmod(-(-(stop - lane) // self.lanes), self.size)
            read = block * self.counts + self._in_part(lane, block, rest)
            below = np.maximum(below, np.where(read > 0, (read - 1) * self.lanes + lane + 1, 0))
        return below.tolist()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pages": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _in_part(self, lane: int, block: int, places: int) -> IntArray:
        """Return int64[n]: how many of the first `places` of a block each child has."""
        page, within = divmod(block * self.size, self._page_size)
        owners = self._owners[self._page(lane, page)[within : within + places]]
        return np.bincount(owners, minlength=len(self.counts)).astype(np.int64)

    def _slots(self, lane: IntArray, place: IntArray) -> NDArray[np.intp]:
        page = place // self._page_size
        within = place - page * self._page_size
        out = np.empty(place.shape, dtype=np.intp)
        for chosen in groups(page * self.lanes + lane):
            slots = self._page(int(lane[chosen][0]), int(page[chosen][0]))
            out[chosen] = slots[within[chosen]]
        return out

    def _page(self, lane: int, page: int) -> Slots:
        """Return uint16[page size]: the slot at each place, numbered so that a child's slots ascend with places."""
        found = self._pages.get((lane, page))
        if found is not None:
            return found
        made = self._make(lane, page)
        with self._lock:
            while len(self._pages) >= self.lanes + SPARE_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[lane, page] = made
        return made

    def _make(self, lane: int, page: int) -> Slots:
        size, num_blocks = self.size, self._page_size // self.size
        blocks = np.arange(page * num_blocks, (page + 1) * num_blocks, dtype=np.int64)
        keys = subkeys(subkey(self._key, lane), blocks)
        slots = np.tile(np.arange(size, dtype=np.int64), num_blocks)
        to = permute(slots, size, int(keys[0]) if num_blocks == 1 else np.repeat(keys, size)).reshape(num_blocks, size)
        owners = np.empty((num_blocks, size), dtype=np.uint16)
        np.put_along_axis(owners, to, np.broadcast_to(self._owners, to.shape), axis=1)
        # A stable sort by child keeps the places of each child in order: the slots' numbers.
        in_order = np.argsort(owners, axis=1, kind="stable")
        numbered = np.empty((num_blocks, size), dtype=np.uint16)
        np.put_along_axis(numbered, in_order, np.arange(size, dtype=np.uint16)[None].repeat(num_blocks, 0), axis=1)
        return numbered.reshape(-1)

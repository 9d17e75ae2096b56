"""Which samples a split has: its shards in order, less what is excluded, as arithmetic over counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from penstock.types import IntArray

FindPlace = Callable[[str, str], int | None]
"""Shard and key of a sample → its place in the shard; None where it is not there."""


class SplitPlaces:
    """The samples of a split, numbered from 0, those that are left out not counted.

    Memory: some 50 bytes a shard, and 8 for each sample that is left out. `unmatched` are the samples to be
    left out that their shards don't have.

    Args:
        shards: their names, in order; one may come twice.
        counts: shard → its samples.
        left_out: shard → keys of samples that are left out.
        find: where a sample is.
    """

    __slots__ = ("_gone", "_shifted", "_starts", "counts", "shards", "size", "split_size", "starts", "unmatched")

    def __init__(
        self, shards: Sequence[str], counts: Mapping[str, int], left_out: Mapping[str, Sequence[str]], find: FindPlace
    ) -> None:
        self.shards = list(shards)
        self.starts: IntArray = np.cumsum([0, *(counts[name] for name in shards)], dtype=np.int64)
        self._starts: list[int] = self.starts.tolist()
        self.split_size = self._starts[-1]
        gone: set[int] = set()
        self.unmatched: list[str] = []
        for number, name in enumerate(self.shards):
            for key in left_out.get(name, ()):
                place = find(name, key)
                if place is None:
                    self.unmatched.append(f"{name}/{key}")
                else:
                    gone.add(int(self.starts[number]) + place)
        self._gone: IntArray = np.array(sorted(gone), np.int64)
        self._shifted = self._gone - np.arange(len(self._gone))
        self.size = self.split_size - len(self._gone)

    def in_split(self, index: int) -> int:
        """Number of sample `index` where those left out are counted."""
        return index if not len(self._gone) else index + int(np.searchsorted(self._shifted, index, "right"))

    def all_in_split(self, indices: IntArray) -> IntArray:
        """int64[k]: `in_split` of each."""
        return indices if not len(self._gone) else indices + np.searchsorted(self._shifted, indices, "right")

    def kept_before(self, place: int) -> int:
        """How many samples before `place` of the whole split are kept."""
        return place - int(np.searchsorted(self._gone, place))

    def is_kept(self, place: int) -> bool:
        """Whether the sample at `place` of the whole split is kept."""
        at = int(np.searchsorted(self._gone, place))
        return at >= len(self._gone) or int(self._gone[at]) != place

    def locate(self, places: IntArray) -> tuple[list[str], list[int]]:
        """The shard of each place of the whole split, and the place in it."""
        numbers = np.searchsorted(self.starts, places, "right") - 1
        inside = (places - self.starts[numbers]).tolist()
        return [self.shards[number] for number in numbers.tolist()], inside

    def locate_one(self, place: int) -> tuple[str, int]:
        """`locate` of one place."""
        number = bisect_right(self._starts, place) - 1
        return self.shards[number], place - self._starts[number]

    @property
    def block_starts(self) -> IntArray:
        """int64[n_shards + 1]: the first kept sample of each shard, and `size`."""
        return self.starts - np.searchsorted(self._gone, self.starts)

"""Assign shards to splits, by a ratio or by patterns of names; and number the samples of a split."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.braces import expand
from penstock.types import IntArray

FindPlace = Callable[[str, str], int | None]
"""Function that returns the place of a sample in its shard, by shard and key, or None if it doesn't exist."""


class SplitPlaces:
    """Samples of a split, numbered from 0 without the excluded ones.

    Memory: some 50 bytes per shard, and 8 for each excluded sample. `unmatched` lists excluded samples that their
    shards don't have.

    Args:
        shards: their names, in order; a shard may be listed twice.
        counts: shard → number of its samples.
        left_out: shard → keys of excluded samples.
        find: finds the place of a sample.
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
        return index if not len(self._gone) else index + int(np.searchsorted(self._shifted, index, "right"))

    def all_in_split(self, indices: IntArray) -> IntArray:
        return indices if not len(self._gone) else indices + np.searchsorted(self._shifted, indices, "right")

    def kept_before(self, place: int) -> int:
        return place - int(np.searchsorted(self._gone, place))

    def is_kept(self, place: int) -> bool:
        at = int(np.searchsorted(self._gone, place))
        return at >= len(self._gone) or int(self._gone[at]) != place

    def locate(self, places: IntArray) -> tuple[list[str], list[int]]:
        numbers = np.searchsorted(self.starts, places, "right") - 1
        inside = (places - self.starts[numbers]).tolist()
        return [self.shards[number] for number in numbers.tolist()], inside

    def locate_one(self, place: int) -> tuple[str, int]:
        number = bisect_right(self._starts, place) - 1
        return self.shards[number], place - self._starts[number]

    @property
    def block_starts(self) -> IntArray:
        """First kept sample of each shard, and `size`: int64[n_shards + 1]."""
        return self.starts - np.searchsorted(self._gone, self.starts)


SPLITS = ("train", "val", "test")
_SHUFFLE_SEED = 42


@dataclass(frozen=True, slots=True)
class Assignment:
    """Shards of each split, and differences from Energon's result.

    Attributes:
        parts: split → names of its shards, in order.
        lost: shards that Energon's rounding omits from every split, or puts into another one.
        unasked: splits without a share.
    """

    parts: dict[str, list[str]]
    lost: tuple[str, ...] = ()
    unasked: frozenset[str] = frozenset()


def by_ratio(shards: Sequence[str], ratio: Mapping[str, float] | Sequence[float] | str, *, shuffle: bool) -> Assignment:
    """Split the list of shards in proportion; each goes to exactly one split.

    Args:
        shards: names, in their order.
        ratio: shares of train, val and test, also as text (`8,1,1`), or shares by split name.
        shuffle: shuffle the list first, by `random.Random(42)`.

    Raises:
        ConfigError: there are no shares, or one is negative.
    """
    ratio = parse_ratio(ratio) if isinstance(ratio, str) else ratio
    shares = dict(ratio) if isinstance(ratio, Mapping) else dict(zip(SPLITS, ratio, strict=False))
    exact = {name: _exact(share) for name, share in shares.items()}
    total = sum(exact.values())
    too_many = not isinstance(ratio, Mapping) and len(ratio) > len(SPLITS)
    if total <= 0 or min(exact.values()) < 0 or too_many:
        raise ConfigError(
            "a split ratio needs one number per split, none negative and not all 0",
            found=f"{ratio}",
            expected="such as 8,1,1",
        )
    names = list(shards)
    if shuffle:
        random.Random(_SHUFFLE_SEED).shuffle(names)
    count = len(names)
    theirs = _their_ends(list(shares.values()), count)
    if theirs[-1] == count:
        ends = theirs
    else:
        upto, ends = Fraction(0), []
        for share in exact.values():
            upto += share
            ends.append(int(count * upto / total))
    starts = [0, *ends[:-1]]
    parts = {name: names[start:end] for name, start, end in zip(shares, starts, ends, strict=True)}
    unasked = frozenset(name for name, share in exact.items() if not share)
    return Assignment(parts, tuple(names[theirs[-1] :]), unasked)


def parse_ratio(text: str) -> list[float]:
    """Return the shares of train, val and test from text such as `8,1,1`.

    Raises:
        ConfigError: the text isn't three numbers.
    """
    try:
        shares = [float(one) for one in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != len(SPLITS):
        raise ConfigError("not a ratio for train, val and test", found=text, expected="three numbers, such as 8,1,1")
    return shares


def _exact(share: float) -> Fraction:
    try:
        return Fraction(str(share))
    except ValueError:
        raise ConfigError("a split ratio must be a number", found=repr(share)) from None


def _their_ends(shares: Sequence[float], count: int) -> list[int]:
    """Return the ends of splits in Energon, where rounding may leave the last shards out of all splits."""
    total = sum(map(float, shares))
    upto, ends = 0.0, list[int]()
    for share in shares:
        upto += float(share) / total
        ends.append(int(count * upto))
    return ends


def by_patterns(shards: Sequence[str], patterns: Sequence[tuple[str, str]]) -> Assignment:
    """Assign shards by matching patterns at the start of their names; a shard may be in several splits.

    Args:
        shards: names, in their order.
        patterns: `(split, regular expression)`; braces are expanded first. A split may have several patterns.

    Raises:
        ConfigError: a pattern is invalid, or matches no shard.
    """
    parts: dict[str, list[str]] = {}
    for split, text in patterns:
        try:
            compiled = [re.compile(one) for one in expand(text, "--split-parts", keep_escapes=True)]
        except re.error as error:
            what = f"the pattern of the split {split!r} is not a valid regular expression"
            raise ConfigError(what, found=f"{text}: {error}") from None
        matched = [name for name in shards if any(one.match(name) for one in compiled)]
        if not matched:
            raise ConfigError(
                f"the pattern of the split {split!r} matches no shard", found=text,
                expected=f"a name such as {', '.join(shards[:3])}",
                hint="It is a regular expression matched at the start of the name: use 'train-.*' instead of 'train-*'",
            )  # fmt: skip
        had = set(parts.get(split, []))
        parts.setdefault(split, []).extend(name for name in matched if name not in had)
    return Assignment(parts)

"""Which shard goes to which split: by a ratio, or by patterns of names."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.braces import expand

SPLITS = ("train", "val", "test")
_SHUFFLE_SEED = 42


@dataclass(frozen=True, slots=True)
class Assignment:
    """Shards of each split, and what Energon would have done otherwise.

    Attributes:
        parts: split → names of its shards, in order.
        lost: shards that Energon's rounding leaves out of every split, or puts into another one.
        unasked: splits that were given no share.
    """

    parts: dict[str, list[str]]
    lost: tuple[str, ...] = ()
    unasked: frozenset[str] = frozenset()


def by_ratio(shards: Sequence[str], ratio: Mapping[str, float] | Sequence[float] | str, *, shuffle: bool) -> Assignment:
    """Cut the list of shards in proportion; each goes to exactly one split.

    Args:
        shards: names, in their order.
        ratio: shares of train, val and test, also as text (`8,1,1`), or of the splits named.
        shuffle: mix the list first, by `random.Random(42)`.

    Raises:
        ConfigError: no share, or a negative one.
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
    """Shares of train, val and test from `8,1,1`.

    Raises:
        ConfigError: not three numbers.
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
    """Where Energon cuts, whose sums of floats may end below 1: then the last shards are in no split."""
    total = sum(map(float, shares))
    upto, ends = 0.0, list[int]()
    for share in shares:
        upto += float(share) / total
        ends.append(int(count * upto))
    return ends


def by_patterns(shards: Sequence[str], patterns: Sequence[tuple[str, str]]) -> Assignment:
    """Shards whose name begins with what a pattern matches; a shard may be in several splits.

    Args:
        shards: names, in their order.
        patterns: `(split, regular expression)`; braces are expanded first. A split may come several times.

    Raises:
        ConfigError: a pattern that is none, or that matches no shard.
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

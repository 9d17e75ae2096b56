"""Packing of samples into groups of bounded length: best-fit decreasing, as in `BestFit`.

For samples with lengths known before reading: from a column, media metadata, or an array. If a length is only known
after cooking, use `PackStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, excluded_of, prefetch_of, samples_of
from penstock._arrays import as_index
from penstock._digest import array_digest, digest, kept_key
from penstock._kinds import Derived
from penstock._naming import function_name
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.node.over import OPEN, Finder, SourceOver
from penstock.pack.placing import RUN_PIECES, kept, new_of, place
from penstock.types import IntArray, Sample, Schema

VERSION = "pack-by-length-1"

Lengths: TypeAlias = IntArray | Sequence[int] | Callable[[Any], int]
"""int64[n_samples], or a pure function of a sample, which reads every sample once per host."""

_READ_AT_ONCE = 4096


class PackByLength(SourceOver[Any]):
    """Source of groups of whole samples whose lengths add up to at most `room`.

    Sample i is `merge(samples)`. Without `merge` it is a dict of lists: field → the group's values. `costs` contains
    the length of each group, for `Balance`.

    Memory: 8 bytes per sample for lengths that are passed or measured. The plan takes 16 bytes per sample (40 while it
    is made); it is mapped from disk if `derived` is given.

    Args:
        source: any source.
        room: largest total length of a group.
        lengths: length per sample, in the unit of `room`: an integer array [len(source)], or a function of a sample.
        merge: pure function, samples of a group → one sample.
        too_long: for samples longer than `room`: `"error"`, `"alone"` (a group of its own), or `"drop"`.
        name: identifies `lengths` and `merge` in fingerprints and recipes; `module:qualname` by default.
        derived: cache for the plan, keyed by fingerprint. By default the source's cache, else memory.

    Raises:
        ConfigError: `room` is below 1, lengths don't match the source, or a function has no name.

    Examples:
        >>> import penstock as ps
        >>> def length(sample):
        ...     return len(sample["tokens"])
        >>> groups = ps.PackByLength(ps.open("corpus.pbin"), room=16, lengths=length, name="length-1")
        >>> [[len(tokens) for tokens in group["tokens"]] for group in groups]
        [[6, 10], [7, 9], [5, 8]]
    """

    kind, version = "pack-by-length", VERSION

    def __init__(
        self,
        source: Source[Any],
        room: int,
        lengths: Lengths,
        merge: Callable[[list[Any]], Sample] | None = None,
        *,
        too_long: Literal["error", "alone", "drop"] = "error",
        name: str | None = None,
        derived: Derived | None = None,
    ) -> None:
        if not 1 <= room < 1 << 31:
            raise ConfigError("room is out of range", found=room, expected="1 to 2^31 - 1")
        if too_long not in ("error", "alone", "drop"):
            raise ConfigError("unknown too_long", found=repr(too_long), expected="'error', 'alone' or 'drop'")
        super().__init__(source)
        self.room = room
        self.merge = merge
        self.too_long = too_long
        if name is None:
            name = f"{_fn_name(lengths) if callable(lengths) else array_digest(lengths)} {_fn_name(merge)}"
        self.name = name
        self._lengths = lengths if callable(lengths) else _checked(np.asarray(lengths), len(source))
        self._derived: Derived | None = derived or capability(source, "derived")
        self._plan: tuple[IntArray, IntArray, IntArray] | None = None
        self.prefetch = self._prefetch if prefetch_of(source) is not None else None

    @property
    def costs(self) -> IntArray:
        """Length of each group, int64[n_groups]."""
        return self._found()[2]

    @property
    def schema(self) -> Schema:
        """Open schema: the fields that `merge` returns are unknown."""
        return OPEN

    def own(self) -> dict[str, Any]:
        return {"room": self.room, "too_long": self.too_long, "fn": self.name}

    def shown(self) -> dict[str, Any]:
        return {"room": self.room, "fn": self.name}

    def find(self, finder: Finder) -> IntArray:
        found = finder.indices(self.source)
        groups = range(len(self) if len(found) else 0)
        return np.array([group for group in groups if np.isin(self.members(group), found).any()], np.int64)

    @property
    def fill(self) -> float:
        """Fraction of the groups' capacity that is used, 0 to 1."""
        return int(self.costs.sum()) / (len(self) * self.room) if len(self) else 0.0

    def __len__(self) -> int:
        return len(self._found()[0]) - 1

    def __getitem__(self, index: int, /) -> Sample:
        return self._merged(samples_of(self.source, self._left(as_index(index, len(self)))))

    @property
    def excluded_indices(self) -> IntArray | None:
        """Groups whose samples are all excluded, int64[k] ascending; None if no sample is excluded."""
        gone = excluded_of(self.source)
        if gone is None:
            return None
        starts, order, _ = self._found()
        kept_before = np.concatenate([[0], np.cumsum(~np.isin(np.asarray(order), gone))])
        return np.flatnonzero(np.diff(kept_before[np.asarray(starts)]) == 0)

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the groups at `indices` (int64[k]), in that order; their samples are read in one batch."""
        members = [self._left(index) for index in indices.tolist()]
        samples = iter(samples_of(self.source, np.concatenate(members))) if members else iter(())
        return [self._merged([next(samples) for _ in group]) for group in members]

    def members(self, index: int) -> IntArray:
        """Return the samples of group `index`, int64[k], in the order of the source."""
        starts, order, _ = self._found()
        return np.sort(np.asarray(order[int(starts[index]) : int(starts[index + 1])]))

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:  # groups never read whole blocks
        if (prefetch := prefetch_of(self.source)) is not None:
            for batch in batches.tolist():
                prefetch(np.concatenate([self._left(index) for index in batch])[None])

    def _left(self, index: int) -> IntArray:
        """Return the members of a group without excluded ones; all of them if nothing else is left."""
        members, gone = self.members(index), excluded_of(self.source)
        if gone is None:
            return members
        left = members[~np.isin(members, gone)]
        return left if len(left) else members

    def __getstate__(self) -> dict[str, Any]:
        # A cached plan is mapped again after unpickling.
        return self.__dict__ if self._derived is None else {**self.__dict__, "_plan": None}

    def _merged(self, samples: list[Any]) -> Sample:
        if self.merge is not None:
            return self.merge(samples)
        names = dict.fromkeys(name for sample in samples for name in sample)
        return {name: [sample.get(name) for sample in samples] for name in names}

    def _found(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the first member of each group, int64[n + 1]; the members; and the groups' lengths."""
        if self._plan is None:
            self._plan = self._made() if self._derived is None else self._kept(self._derived)
        return self._plan

    def _kept(self, derived: Derived) -> tuple[IntArray, IntArray, IntArray]:
        key = digest(self.fingerprint, kept_key(self.source))
        names = [(f"{VERSION}-{key}-{number}", "int64") for number in range(3)]
        starts, order, costs = kept(derived, names, self._made)
        return starts, order, costs

    def _made(self) -> tuple[IntArray, IntArray, IntArray]:
        lengths = self._lengths if not callable(self._lengths) else self._measured(self._lengths)
        longer = np.flatnonzero(lengths > self.room)
        if len(longer) and self.too_long == "error":
            first = int(longer[0])
            raise ConfigError(
                "a sample is longer than room",
                found=f"sample {first} of length {int(lengths[first])}, and {len(longer) - 1} more",
                expected=f"at most {self.room}",
                hint="Use a larger room, or too_long='alone' or 'drop'",
            )
        new = new_of(self._derived)
        placed = place(partial(_fitting, lengths, self.room), self.room, new)
        alone = longer if self.too_long == "alone" else longer[:0]
        n_placed, n_groups = len(placed.values), len(placed.starts) - 1
        starts, order = new(n_groups + len(alone) + 1, "int64"), new(n_placed + len(alone), "int64")
        starts[: n_groups + 1], starts[n_groups + 1 :] = placed.starts, np.arange(1, len(alone) + 1) + n_placed
        order[:n_placed], order[n_placed:] = placed.values, alone
        costs = new(n_groups + len(alone), "int64")
        for first in range(0, n_groups, RUN_PIECES):
            borders = placed.starts[first : min(n_groups, first + RUN_PIECES) + 1]
            held = placed.lengths[borders[0] : borders[-1]].astype(np.int64)
            costs[first : first + len(borders) - 1] = np.add.reduceat(held, borders[:-1] - borders[0])
        costs[n_groups:] = lengths[alone]
        return starts, order, costs

    def _measured(self, measure: Callable[[Any], int]) -> IntArray:
        count, stored = len(self.source), getattr(self.source, "stored_source", self.source)  # indices stay the same
        found = np.empty(count, np.int64)
        for start in range(0, count, _READ_AT_ONCE):
            indices = np.arange(start, min(start + _READ_AT_ONCE, count), dtype=np.int64)
            found[indices] = [measure(sample) for sample in samples_of(stored, indices)]
        return _checked(found, count)


def _checked(lengths: NDArray[Any], count: int) -> IntArray:
    if lengths.shape != (count,) or (count and lengths.dtype.kind not in "iu"):
        raise ConfigError(
            "the lengths don't match the source",
            found=f"{lengths.dtype}{list(lengths.shape)}",
            expected=f"one integer for each of {count} samples",
        )
    if count and int(lengths.min()) < 1:
        at = int(np.flatnonzero(lengths < 1)[0])
        raise ConfigError("lengths must be at least 1", found=f"{int(lengths[at])} of sample {at}")
    return lengths.astype(np.int64)


def _fitting(lengths: IntArray, room: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the samples not longer than `room`, in runs, and their lengths."""
    for first in range(0, len(lengths), RUN_PIECES):
        some = lengths[first : first + RUN_PIECES]
        inside = np.flatnonzero(some <= room)
        yield inside + first, some[inside]


def _fn_name(fn: Callable[..., Any] | None) -> str:
    hint = "Pass name=, and change it when the functions' results change"
    return "-" if fn is None else function_name(fn, hint=hint)

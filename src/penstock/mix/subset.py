"""Ranges of a source, in samples or in percent, and ranges of ranges, by Energon's rules.

`[a, b]` is two numbers of samples, `[a, "end"]`, or two percentages as text; start inclusive, end exclusive. The inner
range counts first, and a range of a range is merged before anything is rounded: 50 % of 50 % is 25 % of the whole.
A percentage of `[0, n)` is `floor(n · ratio)` samples, in the arithmetic of 64-bit floats, as in Energon.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock._access import capability
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.order.take import Take, TakenSource

Bound: TypeAlias = int | str
"""A number of samples, a percentage such as `"12.5%"`, or `"end"`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Part of a source selected by a subset.

    Attributes:
        start: first sample, including excluded ones in the count.
        stop: end of the range; None for the end of the source.
        ratio: the part of that range.
    """

    source: Source[Any]
    start: int = 0
    stop: int | None = None
    ratio: tuple[float, float] = (0.0, 1.0)

    def range_in(self, size: int) -> tuple[int, int]:
        """Return the first and the end place of `size` places."""
        stop = size if self.stop is None else self.stop
        if not 0 <= self.start <= stop <= size:
            raise ConfigError(
                "the range is not inside the source", found=f"[{self.start}, {stop})", expected=f"inside [0, {size})"
            )
        low, high = self.ratio
        return self.start + int((stop - self.start) * low), self.start + int((stop - self.start) * high)


@runtime_checkable
class _Excluding(Protocol):
    """Source with excluded samples, which still count in subsets."""

    @property
    def split_size(self) -> int:
        """Samples of the split, including excluded ones."""
        ...

    def kept_before(self, place: int, /) -> int:
        """Return how many samples before `place` of the split aren't excluded; `place` is in `[0, split_size]`."""
        ...


def subset(source: Source[Any], bounds: Sequence[Bound]) -> TakenSource[Any]:
    """Return the part `[a, b)` of a source. Subsets of subsets are allowed.

    Excluded samples count as samples.

    Args:
        source: any source, including a subset.
        bounds: `[a, b]`: sample numbers, or percentages such as `"10%"`; the second may be `"end"`.

    Returns:
        A source; a token source if `source` is one.

    Raises:
        ConfigError: bounds have different kinds, are in the wrong order or outside the source, or are sample numbers
            although `source` is already a part by percentages.

    Examples:
        >>> import penstock as ps
        >>> source = ps.open("corpus.pbin")
        >>> len(ps.subset(source, ["0%", "50%"]))
        3
        >>> len(ps.subset(source, [4, "end"]))
        2
    """
    known: Chosen | None = capability(source, "chosen")
    return part_of(_narrowed(Chosen(source) if known is None else known, bounds))


def part_of(chosen: Chosen) -> TakenSource[Any]:
    """Return the part of a source, which can be made smaller by `subset`.

    Raises:
        ConfigError: the part isn't inside the source.
    """
    whole = chosen.source
    if isinstance(whole, _Excluding):
        start, stop = map(whole.kept_before, chosen.range_in(whole.split_size))
    else:
        start, stop = chosen.range_in(len(whole))
    taken = Take(whole, start, stop)
    taken.chosen = chosen
    return taken


def _narrowed(chosen: Chosen, bounds: Sequence[Bound]) -> Chosen:
    if isinstance(bounds, str) or len(bounds) != 2:
        raise _wrong(bounds)
    start, stop = bounds
    if isinstance(start, str):
        low, high = _ratio(start, bounds), 1.0 if stop == "end" else _ratio(stop, bounds)
        if low > high:
            raise ConfigError("the start of a range must not be after its end", found=list(bounds))
        begin, end = chosen.ratio
        total = end - begin
        return replace(chosen, ratio=(begin + low * total, begin + high * total))
    if chosen.ratio != (0.0, 1.0):
        raise ConfigError(
            "a range in samples can't be applied to a range in percentages",
            found=list(bounds),
            hint="Apply the range in samples to the dataset first, then the percentages",
        )
    return _absolute(chosen, _number(start, bounds), None if stop == "end" else _number(stop, bounds))


def _absolute(chosen: Chosen, start: int, stop: int | None) -> Chosen:
    if stop is not None and start > stop:
        raise ConfigError("the start of a range must not be after its end", found=[start, stop])
    end = chosen.stop if stop is None else chosen.start + stop
    if chosen.stop is not None and end is not None and end > chosen.stop:
        raise ConfigError(
            "the range is not inside the part",
            found=f"[{start}, {stop})",
            expected=f"inside [0, {chosen.stop - chosen.start})",
        )
    return replace(chosen, start=chosen.start + start, stop=end)


def _ratio(bound: Bound, bounds: Sequence[Bound]) -> float:
    if not isinstance(bound, str) or not bound.endswith("%"):
        raise _wrong(bounds)
    try:
        percent = float(bound.removesuffix("%"))
    except ValueError:
        raise _wrong(bounds) from None
    if not 0 <= percent <= 100:
        raise ConfigError("a percentage must be from 0 to 100", found=bound)
    return percent / 100.0


def _number(bound: Bound, bounds: Sequence[Bound]) -> int:
    if isinstance(bound, (str, bool)):
        raise _wrong(bounds)
    try:
        number = operator.index(bound)
    except TypeError:
        raise _wrong(bounds) from None
    if number < 0:
        raise ConfigError("a range can't start before the first sample", found=list(bounds), expected="0 or more")
    return number


def _wrong(bounds: object) -> ConfigError:
    return ConfigError(
        "not a range of samples",
        found=repr(bounds),
        expected='[a, b] in samples, [a, "end"], or percentages such as ["0%", "12.5%"]',
    )

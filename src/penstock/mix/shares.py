"""Conversion of weights to integer counts: the places of each child of a blend per block.

A block has `2^k` places, k the smallest up to 16 with which every share is within 1 % of its weight. If there is no
such k, it is 16 and each share is less than one place off: 1/65,536 of all samples. Counts are the whole parts of
`weight / sum · 2^k`; the remaining places go to the largest remainders, ties to the earlier name. The arithmetic is
exact: a float counts as its decimal representation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from penstock.errors import ConfigError

MOST_LOG2 = 16

Weight: TypeAlias = int | float | Fraction


def block_counts(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Convert weights to whole places in a block of a `Blend`.

    Args:
        weights: name → positive number; only the ratios count.

    Returns:
        Name → number of places, 1 or more; they add up to a power of two.

    Raises:
        ConfigError: `weights` is empty, or one isn't positive or is too small to get a place.

    Examples:
        >>> from penstock.mix import block_counts
        >>> block_counts({"text": 3, "code": 1})
        {'text': 3, 'code': 1}
    """
    if not weights:
        raise ConfigError("nothing to blend", found="no child", expected="at least one")
    exact = [exactly(f"weight of {name!r}", weight) for name, weight in weights.items()]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [weight.numerator * (scale // weight.denominator) for weight in exact]
    counts = _counts(whole)
    for name, count, weight in zip(weights, counts, whole, strict=True):
        if count == 0:
            raise ConfigError(
                f"the share of {name!r} is too small for a block of {1 << MOST_LOG2} positions",
                found=f"{float(Fraction(weight, sum(whole))):.3g} of the total",
                expected=f"about {1 / (1 << MOST_LOG2):.1e} or more: shares are multiples of 1/{1 << MOST_LOG2:,}",
                hint="Blend the small ones together first, then add that blend",
            )
    return dict(zip(weights, counts, strict=True))


def requested_shares(weights: Mapping[str, Weight]) -> dict[str, float]:
    """Return each child's share of all samples by its exact weight, before rounding to whole places."""
    exact = {name: exactly(f"weight of {name!r}", weight) for name, weight in weights.items()}
    total = sum(exact.values())
    return {name: float(weight / total) for name, weight in exact.items()}


def exactly(what: str, value: Weight) -> Fraction:
    """Return a positive number as a fraction; 0.1 is a tenth.

    Raises:
        ConfigError: `value` isn't a positive, finite number.
    """
    if isinstance(value, np.generic):
        value = value.item()
    try:
        exact = Fraction(repr(float(value))) if isinstance(value, float) else Fraction(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"the {what} is not a number", found=repr(value), expected="a positive number") from error
    if isinstance(value, (bool, str)) or exact <= 0:
        raise ConfigError(f"the {what} is not a positive number", found=repr(value), expected="a positive number")
    return exact


def plain_weight(weight: Weight) -> int | float | str:
    """Return a weight as plain JSON."""
    return weight if isinstance(weight, (int, float)) else str(weight)


def _counts(weights: Sequence[int]) -> list[int]:
    total = sum(weights)
    for log2 in range(MOST_LOG2):
        counts = _largest_remainder(weights, total, 1 << log2)
        errors = (abs(count * total - (weight << log2)) for count, weight in zip(counts, weights, strict=True))
        if all(100 * error <= weight << log2 for error, weight in zip(errors, weights, strict=True)):
            return counts
    return _largest_remainder(weights, total, 1 << MOST_LOG2)


def _largest_remainder(weights: Sequence[int], total: int, places: int) -> list[int]:
    parts = [divmod(weight * places, total) for weight in weights]
    counts = [whole for whole, _ in parts]
    by_remainder = sorted(range(len(parts)), key=lambda child: -parts[child][1])
    for child in by_remainder[: places - sum(counts)]:
        counts[child] += 1
    return counts

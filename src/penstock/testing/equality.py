"""Comparison of samples by content, for values of any type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.types import Batch, Sample


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal in type and content, including dtype and shape; NaN equals NaN.

    Examples:
        >>> import numpy as np
        >>> from penstock.testing import same
        >>> same({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
        True
        >>> same(np.array([1], np.int32), np.array([1], np.int64))
        False
    """
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
        )
    left, right = (value.item() if isinstance(value, np.generic) else value for value in (left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right)
    return type(left) is type(right) and bool(left == right)


def same_samples(left: Sequence[Sample], right: Sequence[Sample]) -> bool:
    """Return whether two lists of samples are the same, one by one."""
    return len(left) == len(right) and all(map(same, left, right))


def batch_row(batch: Batch, row: int) -> Sample:
    """Return sample `row` of a batch. A field that is missing in the sample is None in its column, and None here."""
    return {name: column[row] for name, column in batch.items()}


def row_matches(batch: Batch, row: int, sample: Sample) -> bool:
    """Return whether row `row` of `batch` is `sample`; a field that only other rows have must be None."""
    found = batch_row(batch, row)
    return sample.keys() <= found.keys() and all(same(value, sample.get(name)) for name, value in found.items())

"""Samples to columns: one rule for every source that makes a batch from single samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.types import Batch, Sample


def stack(samples: Sequence[Sample]) -> Batch:
    """Field → array `[k, …]` where the k values are numbers of one kind or arrays of one dtype and shape, else a list.

    Python integers become int64 where they fit, floats float64, bools bool. A field that some sample lacks is a
    list with None in its place.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: column([sample.get(name) for sample in samples]) for name in names}


def column(values: Sequence[Any]) -> Any:
    """One field of a batch, by the rule of `stack`."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        return list(values)
    kind = kinds.pop()
    if kind is np.ndarray:
        first = values[0]
        if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
            return np.stack(values)
    elif issubclass(kind, np.generic):
        return np.array(values, dtype=kind) if values[0].dtype.kind in "biufc" else list(values)
    elif kind is bool or kind is float:
        return np.array(values)
    elif kind is int and min(values) >= -(1 << 63) and max(values) < 1 << 63:
        return np.array(values, dtype=np.int64)
    return list(values)

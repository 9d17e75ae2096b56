"""Indexing as the original allows it: numbers, slices, arrays, and lists of any of them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from penstock._index import as_index
from penstock.abc import Source
from penstock.types import Sample


def at_places(source: Source[Sample], places: Any) -> Any:
    """The sample of a number, else a list: of a slice, or of what each item of a list or array stands for.

    Raises:
        IndexError: there is no such sample.
        TypeError: something that is no index, such as a float.
    """
    if isinstance(places, slice):
        return [source[index] for index in range(*places.indices(len(source)))]
    if isinstance(places, (list, tuple)) or (isinstance(places, np.ndarray) and places.ndim):
        return [at_places(source, one) for one in places]
    return source[as_index(operator.index(places), len(source))]

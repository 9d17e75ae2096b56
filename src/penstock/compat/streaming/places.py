"""Indexing like the original's: numbers, slices, arrays, and lists of any of them."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np

from penstock._index import as_index
from penstock.compat.streaming.faults import NoPlaceOfASample


class Indexed(Protocol):
    """Dataset whose subclasses may define samples by either method."""

    @property
    def size(self) -> int: ...

    def get_item(self, sample_id: int, /) -> Any: ...

    def __getitem__(self, at: Any, /) -> Any: ...


def at_places(dataset: Indexed, places: Any) -> Any:
    """The sample of a number, else a list: of a slice, or of what each item of a list or array stands for.

    Raises:
        IndexError: there is no such sample.
        NoPlaceOfASample: something that is no index, such as a float: a `TypeError`, and a `ValueError`.
    """
    if isinstance(places, slice):
        return [dataset.get_item(index) for index in range(*places.indices(dataset.size))]
    if isinstance(places, (list, tuple)) or (isinstance(places, np.ndarray) and places.ndim):
        return [dataset[one] for one in places]
    try:
        place = operator.index(places)
    except TypeError as error:
        raise NoPlaceOfASample(str(error)) from None
    return dataset.get_item(as_index(place, dataset.size))

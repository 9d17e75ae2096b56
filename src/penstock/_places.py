"""Finds where a sample comes from, as far as its source knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.abc import Source, SupportsExtents, SupportsKeyRuns, SupportsKeys, SupportsPlaces, SupportsTokenExtents
from penstock.errors import FormatError
from penstock.types import Extent, Place

T = TypeVar("T")


def place_of(source: Source[Any], index: int) -> Place:
    """Key, documents and file ranges of sample `index`, each None where `source` does not know it."""
    if isinstance(source, SupportsPlaces):
        return source.place_of(index)
    return Place(
        key=_known(source.key_of, index) if isinstance(source, SupportsKeys) else None,
        extents=_known(lambda at: (source.extent(at),), index) if isinstance(source, SupportsExtents) else None,
    )


def _known(find: Callable[[int], T], index: int) -> T | None:
    """What `find` gives, or None where the sample is damaged: its place in the order is known all the same."""
    try:
        return find(index)
    except FormatError:
        return None


def keys_of(source: SupportsKeys, start: int, stop: int) -> list[str]:
    """Keys of the samples `[start, stop)`; in one call where `source` can do that."""
    if isinstance(source, SupportsKeyRuns):
        return source.key_run(start, stop)
    return [source.key_of(index) for index in range(start, stop)]


def token_extents(source: object, start: int, stop: int) -> tuple[Extent, ...] | None:
    """File ranges that hold tokens `[start, stop)`; None where `source` does not know them."""
    return source.token_extent(start, stop) if isinstance(source, SupportsTokenExtents) else None

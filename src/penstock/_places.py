"""Where a sample comes from, whatever its source can tell."""

from __future__ import annotations

from typing import Any

from penstock.abc import Source, SupportsExtents, SupportsKeys, SupportsPlaces, SupportsTokenExtents
from penstock.types import Extent, Place


def place_of(source: Source[Any], index: int) -> Place:
    """Key, documents and file ranges of sample `index`, each None where `source` does not know it."""
    if isinstance(source, SupportsPlaces):
        return source.place_of(index)
    return Place(
        key=source.key_of(index) if isinstance(source, SupportsKeys) else None,
        extents=(source.extent(index),) if isinstance(source, SupportsExtents) else None,
    )


def token_extents(source: object, start: int, stop: int) -> tuple[Extent, ...] | None:
    """File ranges that hold tokens `[start, stop)`; None where `source` does not know them."""
    return source.token_extent(start, stop) if isinstance(source, SupportsTokenExtents) else None

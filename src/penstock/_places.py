"""Locations of samples, as far as known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from penstock.abc import Source, SupportsFiles, SupportsKeys, SupportsPlaces
from penstock.errors import FormatError
from penstock.types import Extent, Place

T = TypeVar("T")

ExtentsOf = Callable[[int, int], tuple[Extent, ...]]
"""File ranges of the tokens `[start, stop)`."""


@runtime_checkable
class _ManyKeys(Protocol):
    def key_run(self, start: int, stop: int, /) -> list[str]: ...


def place_of(source: Source[Any], index: int) -> Place:
    """Return key, documents and file ranges of sample `index`, each None if unknown."""
    known = _known(source.place_of, index) if isinstance(source, SupportsPlaces) else None
    place = Place() if known is None else known
    if place.key is None and isinstance(source, SupportsKeys):
        return replace(place, key=_known(source.key_of, index))
    return place


def extents_of(source: Source[Any], index: int) -> tuple[Extent, ...] | None:
    """Return only the file ranges of sample `index`: a key may have to be read from the sample. None if unknown."""
    known = _known(source.place_of, index) if isinstance(source, SupportsPlaces) else None
    return None if known is None else known.extents


def _known(find: Callable[[int], T], index: int) -> T | None:
    """Return the result of `find`, or None if the sample is damaged: its index is still valid."""
    try:
        return find(index)
    except FormatError:
        return None


def keys_of(source: SupportsKeys, start: int, stop: int) -> list[str]:
    """Return the keys of the samples `[start, stop)`; sources built on others find them in one call."""
    if isinstance(source, _ManyKeys):
        return source.key_run(start, stop)
    return [source.key_of(index) for index in range(start, stop)]


class ByName(NamedTuple):
    """Named access of a source, for a wrapper of it: `self.get = by_name(source).get`.

    A missing capability is None, which makes isinstance() of its Protocol false.
    """

    index_of: Callable[[str], int] | None
    key_of: Callable[[int], str] | None
    get: Callable[[str], Any] | None
    get_media_metadata: Callable[[str], Any] | None


def by_name(source: Source[Any]) -> ByName:
    """Return the methods of `SupportsKeys` and of `SupportsFiles` that a source has."""
    keys = (source.index_of, source.key_of) if isinstance(source, SupportsKeys) else (None, None)
    files = (source.get, source.get_media_metadata) if isinstance(source, SupportsFiles) else (None, None)
    return ByName(*keys, *files)


def extents_of_tokens(source: object) -> ExtentsOf | None:
    """Return the function for file ranges of a token source; None if they are unknown."""
    return getattr(source, "token_extent", None)


def token_extents(source: object, start: int, stop: int) -> tuple[Extent, ...] | None:
    """Return the file ranges of the tokens `[start, stop)`; None if unknown."""
    extents = extents_of_tokens(source)
    return None if extents is None else extents(start, stop)

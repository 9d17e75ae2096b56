"""Finds where a sample comes from, as far as its source knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from penstock.abc import Source, SupportsFiles, SupportsKeys, SupportsPlaces
from penstock.errors import FormatError
from penstock.types import Extent, Place

T = TypeVar("T")

ExtentsOf = Callable[[int, int], tuple[Extent, ...]]
"""File ranges that hold tokens `[start, stop)`."""


@runtime_checkable
class _ManyKeys(Protocol):
    def key_run(self, start: int, stop: int, /) -> list[str]: ...


def place_of(source: Source[Any], index: int) -> Place:
    """Key, documents and file ranges of sample `index`, each None where `source` does not know it."""
    known = _known(source.place_of, index) if isinstance(source, SupportsPlaces) else None
    place = Place() if known is None else known
    if place.key is None and isinstance(source, SupportsKeys):
        return replace(place, key=_known(source.key_of, index))
    return place


def extents_of(source: Source[Any], index: int) -> tuple[Extent, ...] | None:
    """The file ranges of sample `index` alone: a key may have to be read from the sample. None as in `place_of`."""
    known = _known(source.place_of, index) if isinstance(source, SupportsPlaces) else None
    return None if known is None else known.extents


def _known(find: Callable[[int], T], index: int) -> T | None:
    """What `find` gives, or None where the sample is damaged: its place in the order is known all the same."""
    try:
        return find(index)
    except FormatError:
        return None


def keys_of(source: SupportsKeys, start: int, stop: int) -> list[str]:
    """Keys of the samples `[start, stop)`; a source made of others finds them in one call."""
    if isinstance(source, _ManyKeys):
        return source.key_run(start, stop)
    return [source.key_of(index) for index in range(start, stop)]


class ByName(NamedTuple):
    """What a source does by names, for a wrapper of it: `self.get = by_name(source).get`.

    A power that it lacks is None, which makes isinstance() of its Protocol say no.
    """

    index_of: Callable[[str], int] | None
    key_of: Callable[[int], str] | None
    get: Callable[[str], Any] | None
    get_media_metadata: Callable[[str], Any] | None


def by_name(source: Source[Any]) -> ByName:
    """The powers of `SupportsKeys` and of `SupportsFiles`, as far as a source has them."""
    keys = (source.index_of, source.key_of) if isinstance(source, SupportsKeys) else (None, None)
    files = (source.get, source.get_media_metadata) if isinstance(source, SupportsFiles) else (None, None)
    return ByName(*keys, *files)


def extents_of_tokens(source: object) -> ExtentsOf | None:
    """What tells the file ranges of tokens of a token source; None where it does not know them."""
    return getattr(source, "token_extent", None)


def token_extents(source: object, start: int, stop: int) -> tuple[Extent, ...] | None:
    """File ranges that hold tokens `[start, stop)`; None where `source` does not know them."""
    extents = extents_of_tokens(source)
    return None if extents is None else extents(start, stop)

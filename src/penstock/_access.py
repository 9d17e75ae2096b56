"""Access to the samples of any source or stream, and their locations, as far as known.

A stream is read in two steps: positions are resolved first, and data is read later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import groups
from penstock.abc import (
    Source,
    Stream,
    SupportsFiles,
    SupportsKeys,
    SupportsPlaces,
    SupportsPrefetch,
    SupportsSubstitutes,
)
from penstock.errors import ConfigError, FormatError
from penstock.types import Batch, Extent, IntArray, Place

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


Prefetch: TypeAlias = Callable[..., None]
"""`prefetch` of `penstock.abc.SupportsPrefetch`."""


def capability(node: Any, name: str) -> Any:
    """Return an optional attribute of any source or stream, or None: plug-ins need no base class."""
    return getattr(node, name, None)


def samples_of(source: Source[Any], indices: IntArray) -> list[Any]:
    """Return the samples of a source at `indices` (int64[k]), in that order."""
    # Not isinstance(): for Protocols it takes longer than a small batch.
    get_samples: Callable[[IntArray], list[Any]] | None = getattr(source, "get_samples", None)
    if get_samples is not None:
        return get_samples(indices)
    return [source[index] for index in indices.tolist()]


def prefetch_of(node: Any) -> Prefetch | None:
    """Return the `prefetch` of a source or stream, which accepts hints of the next reads; None if it has none."""
    return getattr(node, "prefetch", None)


def substitutes_of(stream: Stream[Any]) -> SupportsSubstitutes:
    """Return the stream as one with substitutes.

    Raises:
        ConfigError: the stream has no substitutes.
    """
    if not isinstance(stream, SupportsSubstitutes):
        raise ConfigError("the stream has no substitutes for unreadable samples", found=type(stream).__name__)
    return stream


def expect_lanes(node: Any, positions: IntArray, world: int) -> None:
    """Notify a stream that supports it that a rank of `world` only reads the lanes of these positions."""
    if (expect := getattr(node, "expect_lanes", None)) is not None:
        expect(positions, world)


def resolves(stream: object) -> TypeGuard[SupportsPrefetch]:
    """Return whether a stream resolves positions; `prefetch` may be missing."""
    return callable(getattr(stream, "get_resolved_samples", None))


def prefetch_parts(
    prefetch_of_child: Callable[[int], Prefetch | None], owner: NDArray[Any], inner: IntArray, whole: bool
) -> None:
    """Pass on hints to each child that is read.

    Args:
        prefetch_of_child: returns the `prefetch` of a child; None if it takes no hints.
        owner: [n, k]: number of the child, for each sample of n batches.
        inner: int64[n, k]: the child's number of the sample.
        whole: see `penstock.abc.SupportsPrefetch`.
    """
    flat, places, batch_of = inner.reshape(-1), np.arange(inner.size), np.arange(inner.size) // max(1, inner.shape[1])
    for rows in groups(owner.reshape(-1)):
        prefetch = prefetch_of_child(int(owner.flat[places[rows][0]]))
        if prefetch is None:
            continue
        _, which, counts = np.unique(batch_of[rows], return_inverse=True, return_counts=True)
        # Batches with equally many samples of the child are hinted together.
        for count in np.unique(counts).tolist():
            prefetch(flat[rows][counts[which] == count].reshape(-1, count), whole=whole)


class Ahead:
    """Stream with positions that are resolved in advance if possible, else when they are read.

    Attributes:
        stream: the stream.
        prefetch: passes on hints of resolved positions; None if the stream takes no hints.
    """

    __slots__ = ("_resolving", "prefetch", "stream")

    def __init__(self, stream: Stream[Any]) -> None:
        self.stream = stream
        self._resolving = resolves(stream)
        self.prefetch = prefetch_of(stream) if self._resolving else None

    def resolve(self, positions: IntArray) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        stream: Any = self.stream
        return stream.resolve(positions) if self._resolving else positions

    def batch(self, resolved: IntArray) -> Batch:
        """Return the samples at resolved positions as columns."""
        stream: Any = self.stream
        return stream.get_resolved(resolved) if self._resolving else stream.get_batch(resolved)

    def samples(self, resolved: IntArray) -> list[Any]:
        """Return the samples at resolved positions."""
        stream: Any = self.stream
        if self._resolving:
            return stream.get_resolved_samples(resolved)
        return [stream[position] for position in resolved.tolist()]


# --- excluded samples ---

MARK = "substituted"
"""Field of samples of a stream over data with an exclude list: whether it is a substitute."""


def excluded_of(source: Any) -> IntArray | None:
    """Return int64[k], ascending: the excluded samples of a source; None if there are none."""
    found: IntArray | None = getattr(source, "excluded_indices", None)
    return found if found is not None and len(found) else None


def excluded_below(node: Any) -> bool:
    """Return whether a source or stream draws from data with an exclude list."""
    if excluded_of(node) is not None:
        return True
    children: Callable[[], Mapping[str, Any]] | None = getattr(node, "children", None)
    return children is not None and any(map(excluded_below, children().values()))


def keep_mark(sample: Any, made: Any) -> Any:
    """Return the result of a function with the substitute mark of its input."""
    has_mark = isinstance(sample, dict) and MARK in sample and isinstance(made, dict) and MARK not in made
    return {**made, MARK: sample[MARK]} if has_mark else made

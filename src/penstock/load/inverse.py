"""Search for the positions of a document in a stream: the inverse of `locate`.

Each node inverts its own arithmetic (`find`). An order without an inverse (`StreamingOrder`) is searched, 65,536
positions at a time. A document is named by its key; in token windows by its number, as in `Location.documents`, or by
its input row (`origins`); a sample without a key by its index. Several sources of a run may match the name: `OneOf`
selects the sample of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from penstock._access import capability, place_of
from penstock._kinds import is_finite, is_lane_stream, is_stream, is_token_source
from penstock._limits import count_in
from penstock.errors import ConfigError
from penstock.formats._sample_keys import indices_with_key, key_at
from penstock.mix import ConcatTokens
from penstock.node.over import SourceNode, StreamNode
from penstock.node.walk import descend, walk
from penstock.order import Sequential
from penstock.store.place import place_of as store_place_of
from penstock.store.row_map import RowMap, read_row_map
from penstock.types import IntArray, Manifest, Place

_RUN = 1 << 16

Positions: TypeAlias = Iterator[int]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Sample of one dataset, even if other datasets have the same name.

    Attributes:
        index_in: returns its index in a source; None for sources of other datasets and for nodes above sources.
    """

    name: str
    index_in: Callable[[Any], int | None]


class Key(str):
    """Key with the samples that have it in each source: a source without an index of keys is read only once.

    Attributes:
        indices: id of a source → its samples.
    """

    indices: dict[int, IntArray]

    @classmethod
    def of(cls, key: Wanted) -> Wanted:
        """Return `key`, if it is text, as a `Key`."""
        if isinstance(key, OneOf | cls):
            return key
        new = cls(key)
        new.indices = {}
        return new


Wanted: TypeAlias = str | OneOf
"""A document or sample: key, number or row in any source; or the sample of one dataset."""


def positions_of(data: Any, key: Wanted, stop: int) -> Positions:
    """Return the ascending positions below `stop` of samples that are or contain a document.

    Raises:
        ConfigError: the stream packs on the fly, so it has no positions.
    """
    if is_lane_stream(data):
        raise ConfigError("a stream that packs on the fly has no positions", hint="Use its `stream` instead")
    return Search(Key.of(key)).positions(data if is_stream(data) else Sequential(data), stop)


def has_document(data: Any, key: Wanted) -> bool:
    """Return whether a source below a stream or source contains a document, even if it is never read."""
    search, sources = Search(key), (node for node in walk(data) if is_finite(node) and not is_lane_stream(node))
    return any(len(search.indices(source)) for source in sources)


@dataclass(frozen=True, slots=True)
class Search:
    key: Wanted

    def positions(self, stream: Any, stop: int) -> Positions:
        if stop <= 0:
            return iter(())
        if isinstance(stream, StreamNode) and (found := stream.find(self, stop)) is not None:
            return found
        children = stream.children()
        if "stream" in children and is_stream(children["stream"]):
            return self.positions(children["stream"], stop)
        return self._searched(stream, stop)

    def _searched(self, stream: Any, stop: int) -> Positions:
        """Search an order without an inverse, by the index at each position."""
        [source] = stream.children().values()
        indices = self.indices(source)
        for start in range(0, stop if len(indices) else 0, _RUN):
            positions = np.arange(start, min(start + _RUN, stop), dtype=np.int64)
            yield from positions[np.isin(stream.resolve(positions), indices)].tolist()

    def indices(self, source: Any) -> IntArray:
        if isinstance(self.key, OneOf) and (index := self.key.index_in(source)) is not None:
            return np.array([index] if index < len(source) else [], dtype=np.int64)
        if is_token_source(source) and isinstance(self.key, str):
            return np.array([number for number in self.documents(source) if number < len(source)], dtype=np.int64)
        if isinstance(source, SourceNode) and (found := source.find(self)) is not None:
            return found.astype(np.int64, copy=False)
        children = source.children()
        if "source" in children and len(children["source"]) == len(source):
            return self._through(source, children["source"])
        return self._by_key(source)

    def documents(self, source: Any) -> list[int]:
        return documents_of(source, self.key) if isinstance(self.key, str) else self.indices(source).tolist()

    def _by_key(self, source: Any) -> IntArray:
        if isinstance(self.key, OneOf):
            return np.empty(0, dtype=np.int64)
        if not isinstance(self.key, Key):
            return indices_with_key(source, self.key)
        if id(source) not in self.key.indices:
            self.key.indices[id(source)] = indices_with_key(source, self.key)
        return self.key.indices[id(source)]

    def _through(self, source: Any, below: Any) -> IntArray:
        """Return the samples of a source with as many samples as `below`, possibly changed or reordered."""
        found = self.indices(below)
        if not len(found):
            return found
        first = int(found[0])
        place = place_of(source, first)
        if isinstance(self.key, OneOf):
            is_wanted = partial(_agree, place_of(below, first))
        elif _holds(self.key, place):
            return found
        elif place.key is None and place.documents is None:
            return found if key_at(source, first) == self.key else self._by_key(source)
        else:
            is_wanted = partial(_holds, self.key)
        indices = [first] if is_wanted(place) else range(len(source))
        return np.array([index for index in indices if is_wanted(place_of(source, index))], dtype=np.int64)


def _agree(a: Place, b: Place) -> bool:
    """Return whether two places may be those of one sample."""
    if a.extents and b.extents:
        return a.extents == b.extents
    return None in (a.key, b.key) or a.key == b.key


def _holds(key: str, place: Place) -> bool:
    return key == place.key or any(key == str(document) for document, _, _ in place.documents or ())


_NAMED = re.compile(r"(.+)\[(\d{1,18})\]", re.DOTALL)


def row_map_of(source: Any) -> RowMap | None:
    """Return the row map of a token dataset; None if it has none. Raises as `read_row_map`."""
    manifest, recipe = capability(source, "manifest"), source.recipe()
    if not isinstance(manifest, Manifest) or recipe.get("kind") != "open":
        return None
    return read_row_map(store_place_of(recipe["path"]), manifest)


def documents_of(source: Any, key: str) -> list[int]:
    """Return the documents of a token source that a key names: by number, or by input row.

    Raises:
        ConfigError: several inputs have the name.
    """
    if (number := count_in(key)) is not None:
        return [number]
    named = _NAMED.fullmatch(key)
    if named is None:
        return []
    if isinstance(source, ConcatTokens):
        found, begin = list[int](), 0
        for child in source.sources:
            found += [begin + one for one in documents_of(child, key)]
            begin += len(child)
        return found
    mapped = row_map_of(source)
    numbers = [] if mapped is None else mapped.numbers_of(named[1])
    if mapped is None or not numbers:
        return []
    if len(numbers) > 1:
        names = ", ".join(mapped.inputs[number].name for number in numbers[:3])
        raise ConfigError("several inputs have this name", found=named[1], expected=f"one of {names}")
    return mapped.samples_of(numbers[0], np.array([int(named[2])])).tolist()


@dataclass(frozen=True, slots=True)
class Origins:
    """Input rows of a run's documents; each row map is read once."""

    data: Any
    _maps: dict[int, RowMap | None] = field(default_factory=dict[int, RowMap | None])

    def of(self, path: Sequence[str], documents: Sequence[int]) -> list[str | None] | None:
        """Return the input rows of documents; None without a row map."""
        source = descend(self.data, path, is_token_source)
        if source is None:
            return None
        found = [self._origin(source, document) for document in documents]
        return found if any(found) else None

    def _origin(self, source: Any, document: int) -> str | None:
        if isinstance(source, ConcatTokens):
            for child in source.sources:
                if document < len(child):
                    return self._origin(child, document)
                document -= len(child)
            return None
        if id(source) not in self._maps:
            self._maps[id(source)] = row_map_of(source)
        mapped = self._maps[id(source)]
        if mapped is None or document >= len(mapped.rows):
            return None
        one, row = mapped.origin_of(document)
        return f"{one.name}[{row}]"

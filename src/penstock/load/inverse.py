"""Finds the positions of a stream at which a document comes: the inverse of `locate`.

Each stage inverts its own arithmetic; only an order that has no inverse (`StreamingOrder`, a seqax pass) is searched,
65,536 positions at a time. A document is named by its key; in token windows by its number, as `Location.documents`
has it, or by the row it was made of (`origins`); a sample without a key by its index. Several sources of a run may have
what such a name says: `OneOf` means the sample of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import Any, TypeAlias, cast

import numpy as np

from penstock._kinds import is_lane_stream, is_stream, is_token_source
from penstock._numbers import count_in
from penstock._places import place_of
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.formats._sample_keys import indices_with_key, key_at
from penstock.load.origins import documents_of
from penstock.mix import Balance, Blend, ConcatSource, ConcatTokens, Epochs, Stages
from penstock.order import OrderedStream, Sequential, Skip
from penstock.order.take import TakenSource, TakenTokens
from penstock.pack.best_fit import PackedWindows
from penstock.pack.by_length import PackByLength
from penstock.pack.chunk import Windows
from penstock.pack.megatron_blocks import MegatronWindows
from penstock.pack.whole import WholeDocuments
from penstock.types import IntArray, Place

_RUN = 1 << 16

Positions: TypeAlias = Iterator[int]


@dataclass(frozen=True, slots=True)
class OneOf:
    """A sample of one dataset, whatever else has its name.

    Attributes:
        name: for people.
        index_in: the index that it has in a source; None for the source of another dataset, and for what is made of
            sources.
    """

    name: str
    index_in: Callable[[Any], int | None]


class Key(str):
    """A key with the samples that have it in each source: a source without an index of keys is read only once.

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
"""A document or sample: key, number or row, as any source has it; or that of one dataset."""


def positions_of(data: Any, key: Wanted, stop: int) -> Positions:
    """The positions below `stop` of a stream, or a source read once, whose sample is or holds a document; rising.

    Args:
        data: a stream or a source.
        key: of the sample; number of the document where samples are token windows.
        stop: where the search ends.

    Raises:
        ConfigError: a stream that packs on the fly has no positions.
    """
    if is_lane_stream(data):
        raise ConfigError("a stream that packs on the fly has no positions", hint="Use its `stream` instead")
    return _of_stream(data if is_stream(data) else Sequential(data), Key.of(key), stop)


def has_document(node: Any, key: Wanted) -> bool:
    """Whether a stream or a source draws from one that has a document, wherever it comes or is left out."""
    if not (is_stream(node) or is_lane_stream(node)) and len(indices_of(node, key)):
        return True
    return any(has_document(child, key) for child in node.children().values())


def _of_stream(node: Any, key: Wanted, stop: int) -> Positions:
    if stop <= 0:
        return iter(())
    if isinstance(node, OrderedStream):
        return _of_order(node, key, stop)
    for kind, invert in _INVERSES.items():
        if isinstance(node, kind):
            return invert(node, key, stop)
    children = node.children()
    if "stream" in children and is_stream(children["stream"]):
        # What is left are functions over samples: positions stay as they are.
        return _of_stream(children["stream"], key, stop)
    return _searched(node, key, stop)


def _of_blend(node: Blend, key: Wanted, stop: int) -> Positions:
    def of_child(name: str, child: Any, reads: int) -> Positions:
        found = (node.position_of(name, inner) for inner in _of_stream(child, key, reads))
        return _below(stop, found)

    reads = node.reads(stop)
    parts = [of_child(name, child, reads[name]) for name, child in node.children().items()]
    # In several lanes a child's own order is not that of the blend.
    return merge(*parts) if node.lanes == 1 else iter(sorted(one for part in parts for one in part))


def _of_stages(node: Stages, key: Wanted, stop: int) -> Positions:
    starts, ends = [0, *node.borders], [*node.borders, stop]
    for (name, child), start, end in zip(node.children().items(), starts, ends, strict=True):
        for inner in _of_stream(child, key, min(end, stop) - start):
            position = node.position_of(name, inner)
            if position is not None:
                yield position


def _of_skip(node: Skip[Any], key: Wanted, stop: int) -> Positions:
    for inner in _of_stream(node.stream, key, node.inner_one(stop - 1) + 1):
        position = node.position_of(inner)
        if position is not None:
            yield position


def _of_balance(node: Balance[Any], key: Wanted, stop: int) -> Positions:
    size = node.world * node.steps
    places = np.arange(size, dtype=np.int64)
    found: list[int] = []
    for inner in _of_stream(node.stream, key, -(-stop // size) * size):
        begin = inner // size * size
        found.append(begin + int(np.flatnonzero(node.inner(places + begin) == inner)[0]))
    return _below(stop, iter(sorted(found)))


_INVERSES: Mapping[type, Callable[[Any, Wanted, int], Positions]] = {
    Blend: _of_blend,
    Stages: _of_stages,
    Skip: _of_skip,
    Balance: _of_balance,
}


def _of_order(node: OrderedStream[Any], key: Wanted, stop: int) -> Positions:
    source: Any = node.source
    passes = source if isinstance(source, Epochs) else None
    indices = indices_of(source, key) if passes is None else np.empty(0, dtype=np.int64)
    for epoch in range(-(-stop // node.size)):
        if passes is not None:
            indices = _in_pass(passes, key, epoch)
        elif not len(indices):
            return
        yield from (one for one in np.sort(node.inverse(indices, epoch)).tolist() if one < stop)


def _searched(node: Any, key: Wanted, stop: int) -> Positions:
    """By the index of each position: for orders without an inverse."""
    [source] = node.children().values()
    indices = indices_of(source, key)
    for start in range(0, stop if len(indices) else 0, _RUN):
        positions = np.arange(start, min(start + _RUN, stop), dtype=np.int64)
        yield from positions[np.isin(node.resolve(positions), indices)].tolist()


def _below(stop: int, positions: Iterator[int]) -> Positions:
    return (position for position in positions if position < stop)


# --- sources -------------------------------------------------------------------------------------------------------


def indices_of(source: Any, key: Wanted) -> IntArray:
    """int64[k], rising: the samples of a source that are or hold a document."""
    if isinstance(key, OneOf) and (index := key.index_in(source)) is not None:
        return np.array([index] if index < len(source) else [], dtype=np.int64)
    if isinstance(source, Epochs):
        return _in_pass(source, key, 0)
    if isinstance(source, (Windows, MegatronWindows, WholeDocuments, PackedWindows)):
        return _windows(source, key)
    if isinstance(source, PackByLength):
        members = indices_of(source.source, key)
        groups = [np.isin(source.members(index), members).any() for index in range(len(source) if len(members) else 0)]
        return np.flatnonzero(groups).astype(np.int64)
    if _by_its_own_numbers(source, key):
        return _by_number(source, key)
    if isinstance(source, (TakenSource, TakenTokens)):
        return _taken(source, key)
    if isinstance(source, (ConcatSource, ConcatTokens)):
        return _concatenated(source, key)
    children = source.children()
    if "source" in children and len(children["source"]) == len(source):
        return _through(source, indices_of(children["source"], key), key)
    return _by_key(source, key)


def _by_its_own_numbers(source: Any, key: Wanted) -> bool:
    """Whether a name is the number of a document in this source, not in one that it is made of."""
    return is_token_source(source) and isinstance(key, str)


def _through(source: Any, below: IntArray, key: Wanted) -> IntArray:
    """The same samples of a source that may apply a function to those below, or put them into another order."""
    if not len(below):
        return below
    place = place_of(source, int(below[0]))
    if isinstance(key, OneOf):
        return _same_sample(source, int(below[0]), place)
    if _holds(place, key):
        return below
    if place.key is None and place.documents is None:
        if key_at(source, int(below[0])) == key:
            return below
        return _by_key(source, key)
    found = [index for index in range(len(source)) if _holds(place_of(source, index), key)]
    return np.array(found, dtype=np.int64)


def _same_sample(source: Any, index: int, place: Place) -> IntArray:
    """Where a sample of the source below stands, which may be in another order here."""
    [below] = (one for name, one in source.children().items() if name == "source")
    wanted = place_of(below, index)
    if not _differ(place, wanted):
        return np.array([index], dtype=np.int64)
    found = [one for one in range(len(source)) if not _differ(place_of(source, one), wanted)]
    return np.array(found, dtype=np.int64)


def _differ(a: Place, b: Place) -> bool:
    """Whether what both know says that they are of two samples."""
    if a.extents and b.extents:
        return a.extents != b.extents
    return None not in (a.key, b.key) and a.key != b.key


def _holds(place: Place, key: str) -> bool:
    return key == place.key or any(key == str(document) for document, _, _ in place.documents or ())


def _in_pass(source: Epochs, key: Wanted, number: int) -> IntArray:
    """int64[k]: the samples of one pass, counted from its beginning."""
    found: list[int] = []
    begin = 0
    for name, child in source.children().items():
        size = source.counts[name]
        first = (source.first_pass + number) * size
        if size:
            stream = child if is_stream(child) else Sequential(cast(Source[Any], child))
            found.extend(begin + one - first for one in _of_stream(stream, key, first + size) if one >= first)
        begin += size
    return np.array(sorted(found), dtype=np.int64)


def _by_key(source: Any, key: Wanted) -> IntArray:
    if isinstance(key, OneOf):
        return np.empty(0, dtype=np.int64)
    if not isinstance(key, Key):
        return indices_with_key(source, key)
    if id(source) not in key.indices:
        key.indices[id(source)] = indices_with_key(source, key)
    return key.indices[id(source)]


def _by_number(source: Any, key: Wanted) -> IntArray:
    if isinstance(key, OneOf):
        return np.empty(0, dtype=np.int64)
    number = count_in(key)
    numbers = documents_of(source, key) if is_token_source(source) else [] if number is None else [number]
    return np.array([number for number in numbers if number < len(source)], dtype=np.int64)


def _taken(source: Any, key: Wanted) -> IntArray:
    start = int(source.start)
    below = indices_of(source.source, key)
    return below[(below >= start) & (below < int(source.stop))] - start


def _concatenated(source: Any, key: Wanted) -> IntArray:
    parts: list[IntArray] = []
    begin = 0
    for child in source.sources:
        parts.append(indices_of(child, key) + begin)
        begin += len(child)
    return np.concatenate(parts)


def _windows(source: Any, key: Wanted) -> IntArray:
    """The windows that hold tokens of a document."""
    found = [_windows_with(source, document) for document in _documents_named(source.source, key)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def _documents_named(source: Any, key: Wanted) -> list[int]:
    return documents_of(source, key) if isinstance(key, str) else indices_of(source, key).tolist()


def _windows_with(source: Any, document: int) -> IntArray:
    starts = source.source.doc_starts
    if document >= len(starts) - 1 or starts[document] == starts[document + 1]:
        return np.empty(0, dtype=np.int64)
    if isinstance(source, WholeDocuments):
        return np.array([document] if document < len(source) else [], dtype=np.int64)
    if isinstance(source, PackedWindows):
        plan = source.plan
        inside = (plan.piece_starts >= starts[document]) & (plan.piece_starts < starts[document + 1])
        pieces = np.flatnonzero(inside)
        return np.unique(np.searchsorted(plan.window_starts, pieces, side="right") - 1).astype(np.int64)
    # Windows stand in the order of their tokens: the document's are between two places that bisection finds.
    first = _bisect(source, lambda held: held[-1] >= document)
    stop = _bisect(source, lambda held: held[0] > document)
    within = [index for index in range(first, stop) if document in _documents(source, index)]
    return np.array(within, dtype=np.int64)


def _bisect(source: Any, reached: Callable[[list[int]], bool]) -> int:
    low, high = 0, len(source)
    while low < high:
        middle = (low + high) // 2
        held = _documents(source, middle)
        if held and reached(held):
            high = middle
        else:
            low = middle + 1
    return low


def _documents(source: Any, index: int) -> list[int]:
    return [document for document, _, _ in place_of(source, index).documents or ()]

"""Blends of several streams by weight: whole numbers of places in each block, in an order by (seed, block)."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain
from typing import Any, cast

import numpy as np

from penstock._access import capability, substitutes_of
from penstock._arrays import as_position, as_positions
from penstock._digest import derive_key
from penstock._kinds import is_finite, is_stream
from penstock._naming import naming
from penstock.abc import Source, Stream
from penstock.errors import ConfigError
from penstock.mix._branches import BranchingStream, seeded
from penstock.mix.places import VERSION, BlockPlaces
from penstock.mix.shares import Weight, block_counts, plain_weight, requested_shares
from penstock.node.over import Finder
from penstock.order.lanes import check_lanes
from penstock.order.shuffle import Shuffle
from penstock.types import IntArray


class Blend(BranchingStream):
    """Endless stream that draws from several streams or sources in fixed proportions.

    Each block of `sum(counts)` places of a lane contains exactly `counts[name]` samples of each child, so the
    proportions never drift by more than one block. Each child is read in its own order and reshuffled for each of its
    epochs.

    A child that is a source is shuffled with a seed derived from the blend's seed and the child's name. Child streams
    created without a seed get one the same way.

    Args:
        children: name → stream or source.
        weights: name → positive number, for each child. Only the ratios count.
        seed: any integer. If None, the seed is 0, or comes from an enclosing blend.
        lanes: number of lanes. By default that of the child streams, or 1 if all children are sources.
        mixed_tokenizers: accept children whose tokenizers are known to differ.

    Raises:
        ConfigError: names and weights don't match, a weight is too small to get a place in a block, child streams have
            different lanes, two children are the same stream, or tokenizers differ.

    Attributes:
        counts: name → places per block.
        block_size: places per block.
        weights: the weights as passed.
        seed: seed of the order of places.

    Examples:
        >>> import penstock as ps
        >>> blend = ps.Blend(
        ...     {"text": ps.open("corpus.pbin"), "code": ps.open("code.pbin")},
        ...     {"text": 0.75, "code": 0.25},
        ...     seed=1,
        ... )
        >>> blend.counts
        {'text': 3, 'code': 1}
        >>> [blend.locate(position).path[0] for position in range(4)]
        ['text', 'text', 'text', 'code']
    """

    kind = "blend"
    version = VERSION

    def __init__(
        self,
        children: Mapping[str, Stream[Any] | Source[Any]],
        weights: Mapping[str, Weight],
        seed: int | None = None,
        *,
        lanes: int | None = None,
        mixed_tokenizers: bool = False,
    ) -> None:
        _check_names(children, weights)
        self.weights = {name: weights[name] for name in children}
        self.counts = block_counts(self.weights)
        self.block_size = sum(self.counts.values())
        self.seed = 0 if seed is None else operator.index(seed)
        self._given = (dict(children), seed, lanes, mixed_tokenizers)
        lanes = _lanes(children, lanes)
        streams = {name: self._child(name, child, lanes) for name, child in children.items()}
        self._places = BlockPlaces(list(self.counts.values()), self.seed, lanes)
        super().__init__("a blend", lanes, streams, self._places.split)
        _check_different(streams)
        if not mixed_tokenizers:
            _check_tokenizers(streams)

    def split_one(self, position: int) -> tuple[int, int]:
        return self._places.split_one(position)

    def split(self, positions: Sequence[int] | IntArray, /) -> tuple[IntArray, IntArray]:
        """Return int64[k] twice: the child at each position, numbered as in `counts`, and the position in it."""
        owner, inner = self._places.split(as_positions(positions))
        return owner.astype(np.int64), inner

    def position_of(self, name: str, inner: int, /) -> int:
        """Return the position of the child `name`'s position `inner`."""
        return self._places.position_of(self._names.index(name), as_position(inner))

    def substitute(self, position: int, attempt: int, /) -> int:
        child, inner = self._places.split_one(as_position(position))
        return self._places.position_of(child, substitutes_of(self._branches.streams[child]).substitute(inner, attempt))

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        parts = self._find_parts(finder, stop)
        # With several lanes, a child's own order isn't that of the blend.
        return merge(*parts) if self.lanes == 1 else iter(sorted(chain.from_iterable(parts)))

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the blend's parameters and the children's parts."""
        return self.own(), {name: count for name, count in self.reads(stop).items() if count}

    def reads(self, stop: int) -> dict[str, int]:
        """Return name → upper bound of the child's positions read in `[0, stop)`, exact with one lane."""
        return dict(zip(self._names, self._places.reads(as_position(stop)), strict=True))

    def seeded(self, seed: int, /) -> Blend:
        """Return this blend with `seed`, if it was made without a seed."""
        children, own, lanes, mixed = self._given
        if own is not None:
            return self
        return Blend(children, self.weights, seed, lanes=lanes, mixed_tokenizers=mixed)

    def identity(self) -> tuple[Any, ...]:
        return ("blend", self.own(), [stream.fingerprint for stream in self._streams.values()])

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the stream can be rebuilt."""
        children = [
            {"name": name, "weight": plain_weight(weight), "count": self.counts[name], "stream": stream.recipe()}
            for (name, weight), stream in zip(self.weights.items(), self._streams.values(), strict=True)
        ]
        mixed = {"mixed_tokenizers": True} if self._given[3] else {}
        own = {"kind": "blend", "version": VERSION, "seed": self.seed, "lanes": self._lanes}
        return {**own, **mixed, "children": children}

    def shown(self) -> dict[str, Any]:
        return {"children": len(self._names), "block": self.block_size, "seed": self.seed, "lanes": self._lanes}

    def child_notes(self) -> Mapping[str, str]:
        """Return name → its share, by weight and in places."""
        requested = requested_shares(self.weights)
        return {
            name: f"{count:,} of {self.block_size:,} = {count / self.block_size:.4%}, requested {requested[name]:.4%}"
            for name, count in self.counts.items()
        }

    def _child(self, name: str, child: Stream[Any] | Source[Any], lanes: int) -> Stream[Any]:
        seed = derive_key(self.seed, "child", name) >> 12  # 52 bits, which every JSON reader preserves
        if is_stream(child):
            return seeded(child, seed)
        if not is_finite(child):
            raise ConfigError(
                f"{name!r} is neither a stream nor a source",
                found=f"a {type(child).__name__}",
                expected="something with addressable samples",
            )
        with naming(f"the child {name!r}", child):
            return Shuffle(cast(Source[Any], child), seed, lanes=lanes)

    def own(self) -> dict[str, Any]:
        return {
            "kind": "blend",
            "version": VERSION,
            "counts": [[name, count] for name, count in self.counts.items()],
            "seed": self.seed,
            "lanes": self._lanes,
        }


def _check_names(children: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    for name in children:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("the name of a child must be a non-empty string", found=repr(name))
    if children.keys() != weights.keys():
        lacking = [name for name in children if name not in weights]
        unknown = [name for name in weights if name not in children]
        raise ConfigError(
            "each child needs a weight",
            found=f"no weight for {lacking}" if lacking else f"weights for {unknown}, which aren't children",
            expected=f"weights for {list(children)}",
        )


def _lanes(children: Mapping[str, Any], lanes: int | None) -> int:
    if lanes is None:
        return next((child.lanes for child in children.values() if is_stream(child)), 1)
    lanes = operator.index(lanes)
    check_lanes(lanes)
    return lanes


def _check_different(streams: Mapping[str, Stream[Any]]) -> None:
    """Raise an error for two names of one stream: its samples would be read twice in the same order."""
    shapes = {name: repr(_shape(stream)) for name, stream in streams.items()}
    common = Counter(shapes.values())
    seen: dict[str, str] = {}
    for name, stream in streams.items():
        # Equal streams have equal shapes: fingerprints, which read from files, are only needed then.
        if common[shapes[name]] == 1:
            continue
        first = seen.setdefault(stream.fingerprint, name)
        if first != name:
            raise ConfigError(
                f"{first!r} and {name!r} are the same stream: each sample would be read twice, in the same order",
                found=f"fingerprint {stream.fingerprint}",
                hint="Give them different seeds, or use one of them with the sum of their weights",
            )


def _shape(node: Any) -> Any:
    """Return properties that are equal for equal streams, without reading data."""
    children = node.children()
    own = [type(node).__name__, capability(node, "seed"), None if is_stream(node) else len(node)]
    return [*own, [_shape(child) for child in children.values()]]


def _check_tokenizers(streams: Mapping[str, Stream[Any]]) -> None:
    known: dict[str, str] = {}
    for name, stream in streams.items():
        for digest_of in _tokenizers(stream):
            known.setdefault(digest_of, name)
    if len(known) > 1:
        raise ConfigError(
            "children with different tokenizers can't be blended",
            found=", ".join(f"{name}: {digest_of}" for digest_of, name in known.items()),
            hint="Pass mixed_tokenizers=True if this is intended",
        )


def _tokenizers(node: Any) -> set[str]:
    own = capability(node, "tokenizer_digest")
    if own is not None:
        return {own}
    return set[str]().union(*(_tokenizers(child) for child in node.children().values()))

"""Endless stream over one source by an order, as returned by `Shuffle` and `Sequential`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from penstock._access import MARK, capability, excluded_of, place_of, prefetch_of, samples_of
from penstock._arrays import as_position, as_positions
from penstock._digest import derive_key
from penstock._kinds import CutsBlocks
from penstock.abc import Order, Source
from penstock.errors import ConfigError, Excluded
from penstock.node.over import Finder, StreamNode
from penstock.order.permutation import permute_one
from penstock.types import Batch, Field, IntArray, Location, Schema

T = TypeVar("T")

_MARK_FIELD = Field(MARK, "ndarray", "bool", ())
_MOST_ATTEMPTS = 1 << 16


class SizedOrder(Order, Protocol):
    """Order with a known epoch size and serializable parameters."""

    @property
    def size(self) -> int: ...

    def params(self) -> dict[str, Any]:
        """Return all parameters of the order except `size`, as plain JSON."""
        ...


@runtime_checkable
class _Passes(Protocol):
    """Source with different samples in later passes: fractions of its children.

    Place v is sample `v mod len(self)` of pass `v // len(self)`. For `v < len(self)`, each method returns the same as
    its counterpart in `Source`.
    """

    def pass_samples(self, places: IntArray, /) -> list[Any]:
        """Return the samples at `places` (int64[k]), in that order."""
        ...

    def pass_batch(self, places: IntArray, /) -> Batch:
        """Return the samples at `places` (int64[k]) as columns, in that order."""
        ...

    def pass_location(self, place: int, /) -> Location:
        """Return the origin of the sample at `place`; its `position` is `place`."""
        ...

    def find_in_pass(self, finder: Finder, number: int, /) -> IntArray:
        """Return the samples of one pass that are or contain a document, counted from its beginning."""
        ...


class OrderedStream(StreamNode, Generic[T]):
    """Endless stream whose position p, in epoch `p // len(source)`, is `source[order(p)]`.

    If later passes of the source have other samples, as with `Epochs`, epoch e is an order of pass e. The stream is
    itself an `Order`. It is picklable, thread-safe and usable after fork if its source is.

    Attributes:
        name: name in `print`, and its kind in a recipe.
        source: where samples come from.
        size: samples per epoch.
        version: name of the order's arithmetic.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> type(stream).__name__, stream.size, stream.seed
        ('OrderedStream', 6, 0)
        >>> location = stream.locate(8)
        >>> location.epoch, stream.order_one(8) == location.index
        (1, True)
    """

    kind = "ordered"

    def __init__(
        self,
        name: str,
        source: Source[T],
        order: SizedOrder,
        lanes: int,
        with_seed: Callable[[int], OrderedStream[T]] | None = None,
        written: Mapping[str, Any] | None = None,
        *,
        whole_blocks: bool = False,
    ) -> None:
        self.name = self.title = name
        self.kind = name.lower()
        self.source = source
        self.size = order.size
        self.version = order.version
        self._order = order
        self._lanes = lanes
        self._with_seed = with_seed
        self._whole_blocks = whole_blocks
        self._written = dict(written or {})
        self._passes = source if isinstance(source, _Passes) else None
        self._excluded = excluded_of(source) if self._passes is None else None
        # An optional capability: None stands for "not supported".
        self.prefetch = self._prefetch if prefetch_of(source) is not None else None

    @property
    def is_plain(self) -> bool:
        """Whether `resolve` gives indices of the source, in every epoch."""
        return self._passes is None and self._excluded is None

    @property
    def schema(self) -> Schema:
        """Fields of the samples: those of the source, and the mark of substitutes if samples are excluded."""
        schema = self.source.schema
        return schema if self._excluded is None else replace(schema, fields=(*schema.fields, _MARK_FIELD))

    @property
    def lanes(self) -> int:
        """Number of lanes: sub-streams to which positions are assigned in turn."""
        return self._lanes

    def identity(self) -> tuple[Any, ...]:
        params = (self.version, self.size, self._order.params(), self._lanes)
        return ("ordered", *params, self.source.fingerprint)

    @property
    def seed(self) -> int | None:
        """Seed of the order; None if it has none."""
        return self._order.params().get("seed")

    def __getitem__(self, position: int, /) -> T:
        index = self._order.order_one(position)
        if self._passes is not None:
            return self._passes.pass_samples(np.array([self._begin(position) + index]))[0]
        if self._excluded is not None:
            return self.get_resolved_samples(self.resolve(as_positions([position])))[0]
        return self.source[index]

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the index in the source, or the place in its passes if it has several.

        An excluded sample is represented by the index of its substitute plus `size`.
        """
        indices = self._order.order(positions)
        if self._excluded is not None:
            return self._with_substitutes(positions, indices)
        return indices if self._passes is None else indices + (positions - positions % self.size)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at indices from `resolve` as columns."""
        if self._excluded is not None:
            batch = self.source.get_batch(resolved % self.size)
            return {**batch, MARK: resolved >= self.size}
        return self.source.get_batch(resolved) if self._passes is None else self._passes.pass_batch(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[T]:
        """Return the samples at indices from `resolve`."""
        if self._passes is not None:
            return self._passes.pass_samples(resolved)
        if self._excluded is not None:
            samples: list[Any] = samples_of(self.source, resolved % self.size)
            pairs = zip(samples, (resolved >= self.size).tolist(), strict=True)
            marked: list[Any] = [{**one, MARK: mark} if type(one) is dict else one for one, mark in pairs]
            return marked
        return samples_of(self.source, resolved)

    def order(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the index in the source at each position."""
        return self._order.order(positions)

    def order_one(self, position: int, /) -> int:
        """Return the index in the source at `position`."""
        return self._order.order_one(position)

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in `epoch`."""
        return self._order.inverse(indices, epoch)

    def locate(self, position: int, /) -> Location:
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        position = as_position(position)
        index = self._order.order_one(position)
        if self._passes is not None:
            return replace(self._passes.pass_location(self._begin(position) + index), position=position)
        instead_of = None
        if self._excluded is not None and (read := int(self.resolve(as_positions([position]))[0])) >= self.size:
            instead_of, index = index, read - self.size
        place = place_of(self.source, index)
        found = Location(position, (), position // self.size, index, place.key, place.documents, place.extents)
        return found if instead_of is None else replace(found, instead_of=instead_of)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a position of the same epoch with a substitute for the sample at `position`.

        Args:
            position: position of the unreadable sample.
            attempt: 0 for the first substitute; each of the `size - 1` other samples occurs once.

        Raises:
            ConfigError: there is no other sample left.
        """
        position = as_position(position)
        if not 0 <= attempt < self.size - 1:
            raise ConfigError("no sample is left as a substitute", found=f"attempt {attempt}, {self.size} samples")
        key = derive_key(0, "substitute", self.seed or 0, position)
        if self._passes is None:
            return self._other(position, attempt, key)
        path, passed = self.locate(position).path, -1
        for tried in range(self.size - 1):
            other = self._other(position, tried, key)
            passed += self.locate(other).path == path
            if passed == attempt:
                return other
        raise ConfigError("no sample of this child is left as a substitute", found=f"attempt {attempt}")

    def seeded(self, seed: int, /) -> OrderedStream[T]:
        """Return the stream with `seed`, if it was made without a seed."""
        return self if self._with_seed is None else self._with_seed(seed)

    def children(self) -> Mapping[str, Source[T]]:
        """Return the source, under the name `source`."""
        return {"source": self.source}

    def own(self) -> dict[str, Any]:
        return {**self._order.params(), **self._written, "lanes": self._lanes}

    def shown(self) -> dict[str, Any]:
        return {**self._order.params(), "lanes": self._lanes, "samples": self.size}

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        passes = self._passes
        indices = finder.indices(self.source) if passes is None else np.empty(0, np.int64)
        for epoch in range(-(-stop // self.size)):
            if passes is not None:
                indices = passes.find_in_pass(finder, epoch)
            elif not len(indices):
                return
            yield from (one for one in np.sort(self.inverse(indices, epoch)).tolist() if one < stop)

    def expect_lanes(self, positions: IntArray, world: int) -> None:
        """Accept the hint that a rank of `world` reads all lanes of these positions, and no others."""
        if not self._whole_blocks or self._passes is not None or self._lanes % world or world == 1:
            return
        expect: Callable[..., None] | None = capability(self.source, "expect_parts")
        of_one_rank = bool((positions % world == positions[:1] % world).all())
        if expect is not None and of_one_rank and positions.size and isinstance(self._order, CutsBlocks):
            expect(*self._order.parts_read(positions, world))

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        """Hint the source which samples will be read: see `penstock.abc.SupportsPrefetch`."""
        if (prefetch := prefetch_of(self.source)) is not None:
            batches = batches if self._excluded is None else batches % self.size
            prefetch(batches, whole=whole and self._whole_blocks)

    def _with_substitutes(self, positions: IntArray, indices: IntArray) -> IntArray:
        """Return the indices, with each excluded sample replaced by its substitute plus `size`."""
        taken: Any = self._excluded
        taken_out = np.flatnonzero(np.isin(indices, taken))
        if not taken_out.size:
            return indices
        found = indices.copy()
        for at in taken_out.tolist():
            found[at] = self._substitute_index(int(positions[at])) + self.size
        return found

    def _substitute_index(self, position: int) -> int:
        taken: Any = self._excluded
        for attempt in range(min(self.size - 1, _MOST_ATTEMPTS)):
            index = self._order.order_one(self.substitute(position, attempt))
            if not np.isin(index, taken):
                return index
        what = "an excluded sample has no substitute: nearly all others are excluded too"
        raise Excluded(what, found=f"position {position} of {self.name}", hint="Omit this source")

    def _other(self, position: int, attempt: int, key: int) -> int:
        begin = self._begin(position)
        place = permute_one(attempt, self.size - 1, key)
        return begin + place + (place >= position - begin)

    def _begin(self, position: int) -> int:
        return position - position % self.size

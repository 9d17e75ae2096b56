"""Reading from several streams in one call, for `Blend` and `Stages`, and the common schema of their samples.

A position of such a stream resolves to `child's resolved value · number of children + child`. If that exceeds 63 bits,
or
a child resolves to a negative number, it is `-1 - position`, and the position is resolved when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._access import Ahead, expect_lanes, prefetch_parts, substitutes_of
from penstock._arrays import Rows, as_position, as_positions, groups, scatter
from penstock._kinds import Seedable
from penstock._tokens import LOSS_MASK
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.node.over import Finder, StreamNode
from penstock.types import Batch, Field, IntArray, Location, Sample, Schema

NEUTRAL = {LOSS_MASK: 1, "weight": 1}
"""Planes of tokens → the neutral value for children of a mix without this plane."""

_MOST_TRIES = 10_000
_OF_LABELS = ("targets", "segment_ids", "positions", "cu_seqlens")


@dataclass(frozen=True, slots=True)
class Widths:
    """Changes to samples of one child, so that all samples of a mix are alike.

    Attributes:
        ids: fields of ids → their common width.
        planes: missing planes → their dtype; they get the `NEUTRAL` value.
        like: the field of tokens, which defines the shape of these planes.
    """

    ids: Mapping[str, np.dtype[Any]]
    planes: Mapping[str, np.dtype[Any]]
    like: str = ""

    def __bool__(self) -> bool:
        return bool(self.ids or self.planes)


Split: TypeAlias = Callable[[IntArray], tuple[NDArray[Any], IntArray]]
"""Positions int64[k] → child of each, uint[k], and position in the child, int64[k]."""


class Branches:
    def __init__(self, streams: Sequence[Stream[Any]], split: Split) -> None:
        self.streams = tuple(streams)
        self._split = split
        self._ahead = [Ahead(stream) for stream in streams]
        self._prefetches = [ahead.prefetch for ahead in self._ahead]
        self.prefetch = self._prefetch if any(self._prefetches) else None
        self._known: tuple[Schema, Widths] | None = None

    @property
    def schema(self) -> Schema:
        """Fields that the children's samples have in common; token ids in the widest dtype."""
        return self._common()[0]

    def sample(self, child: int, inner: int) -> Sample:
        """Return the sample at position `inner` of a child."""
        return self._widened(self.streams[child][inner])

    def batch(self, positions: IntArray) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, with one call per child involved."""
        owner, inner = self._split(positions)
        return self._gathered(owner, lambda child, rows: self.streams[child].get_batch(inner[rows]))

    def resolve(self, positions: IntArray) -> IntArray:
        count = len(self.streams)
        owner, inner = self._split(positions)
        resolved = np.empty(positions.shape, dtype=np.int64)
        for rows in groups(owner):
            child = int(owner[rows][0])
            own = self._ahead[child].resolve(inner[rows])
            fits = (own >= 0) & (own < (1 << 63) // count - 1)
            resolved[rows] = np.where(fits, own * count + child, -1 - positions[rows])
        return resolved

    def resolved_batch(self, resolved: IntArray) -> Batch:
        owner, own = self._opened(resolved)
        return self._gathered(owner, lambda child, rows: self._ahead[child].batch(own[rows]))

    def resolved_samples(self, resolved: IntArray) -> list[Any]:
        owner, own = self._opened(resolved)
        samples: list[Any] = [None] * len(resolved)
        places = np.arange(len(resolved))
        for rows in groups(owner):
            read = self._ahead[int(owner[rows][0])].samples(own[rows])
            for place, sample in zip(places[rows].tolist(), read, strict=True):
                samples[place] = self._widened(sample)
        return samples

    def locate(self, position: int, name: str, child: int, inner: int) -> Location:
        """Return the origin of position `inner` of a child, seen from `position`."""
        at = self.streams[child].locate(inner)
        return replace(at, position=position, path=(name, *at.path))

    def expect_lanes(self, positions: IntArray, world: int) -> None:
        """Notify the children which lanes a rank reads."""
        owner, inner = self._split(positions)
        for rows in groups(owner):
            expect_lanes(self.streams[int(owner[rows][0])], inner[rows], world)

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        owner, own = self._opened(batches.reshape(-1))
        prefetch_parts(self._prefetches.__getitem__, owner.reshape(batches.shape), own.reshape(batches.shape), whole)

    def _opened(self, resolved: IntArray) -> tuple[NDArray[Any], IntArray]:
        """Return the child, and its own resolved value, for each resolved position."""
        own, owner = np.divmod(resolved, len(self.streams))
        late = np.flatnonzero(resolved < 0)
        if late.size:
            owners, inner = self._split(-1 - resolved[late])
            owner[late] = owners
            for rows in groups(owners):
                own[late[rows]] = self._ahead[int(owners[rows][0])].resolve(inner[rows])
        return owner, own

    def _gathered(self, owner: NDArray[Any], of: Callable[[int, Rows], Batch]) -> Batch:
        if not owner.size:
            return self.streams[0].get_batch(np.empty(0, dtype=np.int64))
        places = np.arange(len(owner))
        parts: list[tuple[NDArray[np.intp], Batch]] = []
        for rows in groups(owner):
            parts.append((places[rows], self._widened(of(int(owner[rows][0]), rows))))
        return parts[0][1] if len(parts) == 1 else scatter(parts, len(owner))

    def _widened(self, values: Sample) -> Sample:
        """Return a sample, or columns, with token ids in the common width."""
        return widened(values, self._common()[1])

    def _common(self) -> tuple[Schema, Widths]:
        # Delayed: a schema may have to be read.
        if self._known is None:
            self._known = common([stream.schema for stream in self.streams])
        return self._known


class BranchingStream(StreamNode):
    """Stream that takes the sample at each position from one of several streams.

    Raises:
        ConfigError: a child has another number of lanes.
    """

    def __init__(self, what: str, lanes: int, streams: Mapping[str, Stream[Any]], split: Split) -> None:
        for name, stream in streams.items():
            if stream.lanes != lanes:
                raise ConfigError(
                    f"{what} has {lanes} lanes, but its child {name!r} doesn't",
                    found=f"{stream.lanes} lanes in {name!r}",
                    expected=f"{lanes}",
                    hint=f"Create it with lanes={lanes}, as in Shuffle(source, seed, lanes={lanes})",
                )
        self._lanes = lanes
        self._streams = dict(streams)
        self._names = list(streams)
        self._branches = Branches(list(streams.values()), split)
        self.prefetch = self._branches.prefetch
        self.expect_lanes = self._branches.expect_lanes

    def split_one(self, position: int) -> tuple[int, int]:
        """Return the number of the child at `position`, and the position in it."""
        raise TypeError(type(self).__name__)

    def position_of(self, name: str, inner: int, /) -> int | None:
        """Return the position of the child `name`'s position `inner`; None if it isn't read."""
        raise TypeError(type(self).__name__)

    def children(self) -> Mapping[str, Stream[Any]]:
        """Return the child streams by name."""
        return self._streams

    @property
    def lanes(self) -> int:
        """Number of lanes. Lane l draws from lane l of the children."""
        return self._lanes

    @property
    def schema(self) -> Schema:
        """Fields that the children's samples have in common; token ids in the widest dtype."""
        return self._branches.schema

    def __getitem__(self, position: int, /) -> Sample:
        return self._branches.sample(*self.split_one(as_position(position)))

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order, with one call per child involved."""
        return self._branches.batch(as_positions(positions))

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        return self._branches.resolve(positions)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at resolved positions as columns."""
        return self._branches.resolved_batch(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Any]:
        """Return the samples at resolved positions."""
        return self._branches.resolved_samples(resolved)

    def locate(self, position: int, /) -> Location:
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        child, inner = self.split_one(as_position(position))
        return self._branches.locate(position, self._names[child], child, inner)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return the position of another sample of the same child; see `SupportsSubstitutes`.

        Raises:
            ConfigError: the child has no substitutes, or no more of them.
        """
        child, inner = self.split_one(as_position(position))
        stream = substitutes_of(self._branches.streams[child])
        found = (self.position_of(self._names[child], stream.substitute(inner, tried)) for tried in count())
        tried = islice(found, _MOST_TRIES + attempt)
        other = next(islice((one for one in tried if one is not None), attempt, None), None)
        if other is None:
            raise ConfigError("no sample of this stage is left as a substitute", found=f"attempt {attempt}")
        return other

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: parameters, and how much is read of which child."""
        raise TypeError(type(self).__name__)

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        return chain.from_iterable(self._find_parts(finder, stop))

    def _find_parts(self, finder: Finder, stop: int) -> list[Iterator[int]]:
        """Return the search of each child that is read before `stop`."""

        def of_child(name: str, reads: int) -> Iterator[int]:
            found = (self.position_of(name, inner) for inner in finder.positions(self._streams[name], reads))
            return (position for position in found if position is not None and position < stop)

        return [of_child(name, reads) for name, reads in self.horizon(stop)[1].items()]


def seeded(stream: Stream[Any], seed: int) -> Stream[Any]:
    """Return the stream, with `seed` if it was made without one."""
    return stream.seeded(seed) if isinstance(stream, Seedable) else stream


def common(schemas: Sequence[Schema]) -> tuple[Schema, Widths]:
    """Return the common schema, and the changes to make samples alike.

    Raises:
        ConfigError: some windows or documents lack a plane without a neutral value.
    """
    fields: list[Field] = []
    widths: dict[str, np.dtype[Any]] = {}
    for field in schemas[0].fields:
        others = [other for schema in schemas for other in schema.fields if other.name == field.name]
        if len(others) < len(schemas) or any(other.kind != field.kind for other in others):
            continue
        dtypes = {other.dtype for other in others}
        kinds = [np.dtype(dtype) for dtype in dtypes if dtype is not None]
        if len(dtypes) > 1 and len(kinds) == len(dtypes) and all(kind.kind == "u" for kind in kinds):
            widths[field.name] = max(kinds, key=lambda kind: kind.itemsize)
            field = replace(field, dtype=widths[field.name].name)
        elif len(dtypes) > 1:
            field = replace(field, dtype=None)
        if len({other.shape for other in others}) > 1:
            field = replace(field, shape=None)
        fields.append(field)
    like, filled = _filled(schemas)
    fields += filled
    closed = all(
        not schema.open and {field.name for field in schema.fields} == {field.name for field in fields}
        for schema in schemas
    )
    return Schema(tuple(fields), open=not closed), Widths(
        widths, {one.name: np.dtype(one.dtype) for one in filled}, like
    )


def _filled(schemas: Sequence[Schema]) -> tuple[str, list[Field]]:
    """Return the common field of tokens, and the planes that only some schemas have."""
    names = [{field.name: field for field in schema.fields} for schema in schemas]
    ids = [{name for name, field in known.items() if field.kind == "tokens"} for known in names]
    like = next((one for one in ("tokens", "inputs") if all(one in known for known in ids)), None)
    if like is None or any(schema.open for schema in schemas):
        return "", []
    planes = {field.name: field for known in names for field in known.values() if _is_plane(field)}
    some = [field for name, field in planes.items() if not all(name in known for known in names)]
    for field in some:
        dtypes = {known[field.name].dtype for known in names if field.name in known}
        if field.name not in NEUTRAL or len(dtypes) > 1:
            what = f"only some of the mixed sources have the plane {field.name}"
            hint = "Add the plane to all of them, or drop it: penstock.open(…, planes=None)"
            raise ConfigError(what, found=f"{field.name}: {', '.join(map(str, sorted(map(str, dtypes))))}", hint=hint)
    return like, some


def _is_plane(field: Field) -> bool:
    is_row = field.kind == "ndarray" and field.shape is not None and len(field.shape) == 1
    return is_row and field.name not in _OF_LABELS


def widened(values: Sample, widths: Widths) -> Sample:
    """Return a sample, or columns, with token ids in the common width, and missing planes added."""
    change: dict[str, Any] = {
        name: values[name].astype(dtype)
        for name, dtype in widths.ids.items()
        if isinstance(values.get(name), np.ndarray) and values[name].dtype != dtype
    }
    for name, dtype in widths.planes.items():
        if name not in values:
            like = values[widths.like]
            rows = [like] if isinstance(like, np.ndarray) else like
            made = [np.full(one.shape, NEUTRAL[name], dtype) for one in rows]
            change[name] = made[0] if isinstance(like, np.ndarray) else made
    return {**values, **change} if change else values

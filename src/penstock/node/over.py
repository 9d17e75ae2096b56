"""Bases of sources and streams built on others: a class adds its kind, its parameters and its changes.

Fingerprint, recipe, summary, printing and capabilities follow from the bases. A capability of None is unsupported, and
makes isinstance() of its Protocol false. Optional attributes of foreign objects, which only implement a Protocol of
`penstock.abc`, are read by `capability`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from penstock._access import Ahead, capability, excluded_of, place_of, samples_of, substitutes_of
from penstock._arrays import as_index, as_indices, as_position, as_positions, stack
from penstock._digest import digest
from penstock._kinds import Seedable
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, Stream
from penstock.node.blocks import Blocks, blocks_of, preferred_mode
from penstock.types import Batch, IntArray, Location, Place, Schema

T = TypeVar("T")

OPEN = Schema((), open=True)
"""Schema of samples with unknown fields until they are made."""


class Finder(Protocol):
    """Search for one document, which each node passes on to its children."""

    def indices(self, source: Any) -> IntArray:
        """Return the samples of a source that are or contain the document, int64[k] ascending."""
        ...

    def documents(self, source: Any) -> list[int]:
        """Return the numbers of the document in a token source."""
        ...

    def positions(self, stream: Any, stop: int) -> Iterator[int]:
        """Yield the ascending positions below `stop` of samples that are or contain the document."""
        ...


class Node:
    """Source or stream of Penstock.

    Attributes:
        kind: name in recipes and fingerprints.
        title: name in printed trees; that of the class by default.
        version: name of the arithmetic, in recipes and fingerprints; None if there is only one.
    """

    kind: str
    title: str = ""
    version: Any = None
    prefetch: Any = None
    _fingerprint: str | None = None

    def own(self) -> dict[str, Any]:
        """Return the node's own parameters as plain JSON, in the order in which they are digested."""
        return {}

    def children(self) -> Mapping[str, Any]:
        """Return the sources or streams that this is made of, by name."""
        return {}

    def identity(self) -> tuple[Any, ...]:
        """Return the values that the fingerprint is a digest of."""
        children = (child.fingerprint for child in self.children().values())
        return (self.version or self.kind, *self.own().values(), *children)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the samples: kind, parameters and children."""
        if self._fingerprint is None:
            self._fingerprint = digest(*self.identity())
        return self._fingerprint

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        version = {} if self.version is None else {"version": self.version}
        children = {name: child.recipe() for name, child in self.children().items()}
        return {"kind": self.kind, **version, **self.own(), **children}

    def shown(self) -> dict[str, Any]:
        """Return the parameters in the summary."""
        return self.own()

    def summary(self) -> str:
        """Return one line: name and parameters."""
        return line(self.title or type(self).__name__, self.shown(), self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class SourceNode(Node):
    """Source of Penstock."""

    def __len__(self) -> int:
        raise TypeError(type(self).__name__)

    def __getitem__(self, index: int, /) -> Any:
        raise TypeError(type(self).__name__)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        source: Any = self
        return stack(samples_of(source, as_indices(indices, len(self))))

    def find(self, finder: Finder) -> IntArray | None:
        """Return the samples that are or contain a document, int64[k]; None if only the samples' keys identify it."""
        del finder
        return None


class SourceOver(SourceNode, Generic[T]):
    """Source built on another one."""

    def __init__(self, source: Source[T]) -> None:
        self.source = source

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the source, under the name `source`."""
        return {"source": self.source}


class Reindexed(SourceOver[T]):
    """Samples of another source at other indices, as `source_index` converts them."""

    def source_index(self, index: Any) -> Any:
        """Return the source's index of an index, or of int64[k] of them."""
        raise TypeError(type(self).__name__)

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        return self.source.schema

    def __getitem__(self, index: int, /) -> T:
        return self.source[int(self.source_index(as_index(index, len(self))))]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return self.source.get_batch(self.source_index(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return samples_of(self.source, self.source_index(as_indices(indices, len(self))))

    def place_of(self, index: int, /) -> Place:
        """Return the source's place of sample `index`."""
        return place_of(self.source, int(self.source_index(as_index(index, len(self)))))


HANDED_ON = (
    *("index_of", "key_of", "key_run", "get", "get_media_metadata", "get_with_shard"),
    *("prefetch", "expect_parts", "block_files", "kept_before"),
)
"""Optional methods of a source that a view of it has, too."""


class View(Reindexed[T]):
    """Samples of another source, unchanged: by default all of them, at their indices.

    A subclass with other indices overrides `source_index`, and defines `_<name>` for each method of `HANDED_ON` that
    takes or returns indices.
    """

    index_of: Any
    key_of: Any
    key_run: Any
    get: Any
    get_media_metadata: Any
    get_with_shard: Any
    expect_parts: Any
    block_files: Any
    kept_before: Any

    def __init__(self, source: Source[T]) -> None:
        super().__init__(source)
        for name in HANDED_ON:
            below = capability(source, name)
            own = f"_{name}"
            setattr(self, name, below if below is None or not hasattr(type(self), own) else getattr(self, own))

    def source_index(self, index: Any) -> Any:
        return index

    def __len__(self) -> int:
        return len(self.source)

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return preferred_mode(self.source)

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples, int64[k] ascending; None without an exclude list."""
        return excluded_of(self.source)

    @property
    def costs(self) -> IntArray | None:
        """Work per sample, int64[n]; None if unknown."""
        return capability(self.source, "costs")

    @property
    def path(self) -> Any:
        """Path of the dataset; None if the source has none."""
        return capability(self.source, "path")

    @property
    def split_size(self) -> int | None:
        """Samples of the split, including those that the split's own list leaves out."""
        return None if self.kept_before is None else capability(self.source, "split_size")

    @property
    def block_starts(self) -> IntArray:
        """First sample of each storage block, and the number of samples: int64[n_blocks + 1]."""
        return self.storage_blocks().starts()

    def storage_blocks(self) -> Blocks:
        """Return the storage blocks; see `penstock.node.blocks`."""
        return blocks_of(self.source)


class Changes(Node):
    """Changes samples one by one: `change` gets a sample and its index in a source, or its position in a stream."""

    def change(self, sample: Any, number: int) -> Any:
        """Return the changed sample."""
        raise TypeError(type(self).__name__)

    def change_all(self, samples: list[Any], numbers: IntArray) -> list[Any]:
        """Return the changed samples."""
        return list(map(self.change, samples, numbers.tolist()))

    def columns(self, samples: list[Any]) -> Batch:
        """Return changed samples as columns."""
        return stack(samples)

    @property
    def schema(self) -> Schema:
        """Open schema: the changed fields are only known once they are made."""
        return OPEN


class ChangedView(Changes, View[Any]):
    """Samples of another source, each of them changed."""

    def __getitem__(self, index: int, /) -> Any:
        index = as_index(index, len(self))
        return self.change(self.source[index], index)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        return self.columns(self.get_samples(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        indices = np.asarray(indices)
        return self.change_all(samples_of(self.source, indices), indices)


class StreamNode(Node):
    """Stream of Penstock."""

    expect_lanes: Any = None
    resolve: Any
    get_resolved: Any

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        return self.get_resolved(self.resolve(as_positions(positions)))

    def seeded(self, seed: int, /) -> Any:
        """Return this with `seed`, if it was made without a seed."""
        del seed
        return self

    def find(self, finder: Finder, stop: int) -> Iterator[int] | None:
        """Yield the positions below `stop` of samples with a document; None if all must be searched."""
        del finder, stop
        return None


class StreamOver(StreamNode, Generic[T]):
    """Stream built on another one: by default its samples, at its positions."""

    def __init__(self, stream: Stream[T]) -> None:
        self.stream = stream
        self._ahead = Ahead(stream)
        self.prefetch = self._ahead.prefetch
        self.expect_lanes = capability(stream, "expect_lanes")

    def over(self, stream: Any) -> Self:
        """Return the same, made of another stream."""
        raise TypeError(type(self).__name__)

    def children(self) -> Mapping[str, Any]:
        """Return the stream, under the name `stream`."""
        return {"stream": self.stream}

    @property
    def lanes(self) -> int:
        """Number of lanes: sub-streams to which positions are assigned in turn."""
        return self.stream.lanes

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        return self.stream.schema

    def __getitem__(self, position: int, /) -> T:
        return self.stream[position]

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        return self._ahead.resolve(positions)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at resolved positions as columns."""
        return self._ahead.batch(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Any]:
        """Return the samples at resolved positions."""
        return self._ahead.samples(resolved)

    def locate(self, position: int, /) -> Location:
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        return self.stream.locate(position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a position with a substitute for the sample at `position`; see `SupportsSubstitutes`.

        Raises:
            ConfigError: the stream has no substitutes, or no more of them.
        """
        return substitutes_of(self.stream).substitute(position, attempt)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the node's parameters, and its children's positions."""
        return {"kind": self.kind, **self.own()}, {"stream": stop}

    def seeded(self, seed: int, /) -> Self:
        """Return this with `seed`, if the stream was made without a seed."""
        return self.over(self.stream.seeded(seed)) if isinstance(self.stream, Seedable) else self

    def find(self, finder: Finder, stop: int) -> Iterator[int]:
        """Yield the positions below `stop` of samples that are or contain a document."""
        return finder.positions(self.stream, stop)


class MovedStream(StreamOver[T]):
    """Samples of another stream at other positions: `inner` is one-to-one."""

    def inner(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the corresponding positions in `stream`."""
        raise TypeError(type(self).__name__)

    def inner_one(self, position: int, /) -> int:
        """Return `inner` for one position."""
        return int(self.inner(np.array([as_position(position)], np.int64))[0])

    def position_of(self, inner: int, /) -> int | None:
        """Return the position of the stream's position `inner`, if it has one."""
        raise TypeError(type(self).__name__)

    def __getitem__(self, position: int, /) -> T:
        return self.stream[self.inner_one(position)]

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        return self.stream.get_batch(self.inner(as_positions(positions)))

    def resolve(self, positions: IntArray, /) -> IntArray:
        return self._ahead.resolve(self.inner(positions))

    def locate(self, position: int, /) -> Location:
        return replace(self.stream.locate(self.inner_one(position)), position=position)

    def substitute(self, position: int, attempt: int, /) -> int:
        stream, inner = substitutes_of(self.stream), self.inner_one(position)
        others = (self.position_of(stream.substitute(inner, tried)) for tried in count())
        return next(islice((one for one in others if one is not None), attempt, None))


class ChangedStream(Changes, StreamOver[Any]):
    """Samples of another stream, each of them changed."""

    def __getitem__(self, position: int, /) -> Any:
        position = as_position(position)
        return self.change(self.stream[position], position)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        return self.columns(self.get_resolved_samples(resolved))

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Any]:
        return self.change_all(self._ahead.samples(resolved), resolved)

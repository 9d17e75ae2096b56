"""Endless streams of samples, their orders, and streams that pack on the fly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from penstock.abc.sources import Source
from penstock.types import Batch, IntArray, Location, Schema

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """An endless, addressable run of samples.

    Laws: `self[p]` is a pure function of `p >= 0`; position `p` is lane `p mod lanes`, place `p // lanes`
    in it; row j of `get_batch(positions)` equals `self[positions[j]]`.
    """

    @property
    def lanes(self) -> int:
        """Number of sub-streams that positions are dealt to."""
        ...

    @property
    def schema(self) -> Schema:
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that decides what each position holds: data, order, seed, lanes."""
        ...

    def __getitem__(self, position: int, /) -> T_co: ...

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `positions`: int64[k], in that order."""
        ...

    def locate(self, position: int, /) -> Location:
        """Where position comes from; reads no data, only indexes."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """What the stream draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which the stream can be made again."""
        ...


@runtime_checkable
class SupportsSubstitutes(Protocol):
    """A stream that can name a stand-in for an unreadable sample, drawn from the same child."""

    def substitute(self, position: int, attempt: int, /) -> int:
        """Another position of the same child: a permutation keyed by (seed, position), at place `attempt`."""
        ...


@runtime_checkable
class SupportsResolve(Protocol):
    """A stream that does its arithmetic ahead: thousands of positions in one call, read later in batches.

    Law: `get_resolved(resolve(positions))` equals `get_batch(positions)`, for any split of the positions.
    """

    def resolve(self, positions: IntArray, /) -> IntArray:
        """int64[k]: one ticket a position, such as the index in the source; reads no data."""
        ...

    def get_resolved(self, tickets: IntArray, /) -> Batch:
        """Columns of the samples that the tickets stand for, in that order."""
        ...


@runtime_checkable
class SupportsExpect(Protocol):
    """A source or stream that may be told what is going to be read: remote files then come whole where that is cheaper.

    Law: what is expected changes no sample; it may be wrong, or never be read.
    """

    def expect(self, batches: IntArray, /, *, whole: bool = False) -> None:
        """Say what comes.

        Args:
            batches: int64[n, k]: indices of a source, or tickets of a stream, in batches that are read one by one.
            whole: to a source: later all of the storage blocks that are touched will have been read; to a stream: all
                samples of its lanes that are touched are read here.
        """
        ...


@runtime_checkable
class SupportsResolvedSamples(SupportsResolve, Protocol):
    """A stream that reads single samples by tickets."""

    def get_resolved_samples(self, tickets: IntArray, /) -> list[Any]:
        """The samples that the tickets stand for, in that order; each equals `self[position]`."""
        ...


@runtime_checkable
class SupportsSeed(Protocol):
    """A stream in which a seed may be left open."""

    def seeded(self, seed: int, /) -> Stream[Any]:
        """The stream with `seed` where none was given, in what it draws from too; itself where nothing was open."""
        ...


@runtime_checkable
class SupportsHorizon(Protocol):
    """A stream that knows what its first positions depend on: a run may resume where only a later part differs."""

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """What decides the positions `[0, stop)`, for `stop >= 1`.

        Returns:
            The stream's own parameters as plain JSON, without its children's recipes, cut down to what matters
            before `stop`; empty where the stream so far hands on one child as it is. And the children read
            there: name → a number that all of the child's positions read so far are below.
        """
        ...


@runtime_checkable
class LaneStream(Protocol[T_co]):
    """An endless run that a stage makes with 0 to n outputs for its inputs: packing on the fly, generators, filters.

    Addressed by lane, window and offset, never by position: a window is a run of inputs of one lane, and a lane's
    outputs are those of its windows one after another. The global order takes one output of each lane in turn.

    Laws: `outputs(lane, window)` is a pure function; lanes never depend on each other.
    """

    @property
    def lanes(self) -> int:
        """Number of lanes; a world size must divide it."""
        ...

    @property
    def schema(self) -> Schema:
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that decides what each lane holds."""
        ...

    def outputs(self, lane: int, window: int, /) -> Iterator[T_co]:
        """The samples that one window of a lane gives, in order; there may be none."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """What it draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which it can be made again."""
        ...


class Order(Protocol):
    """Position → index, as arithmetic.

    Laws: a bijection on each epoch `[e·n, (e + 1)·n)`; O(1) memory; `order` and `order_one` agree;
    outputs for given parameters never change under one `version`.
    """

    @property
    def version(self) -> str:
        """Name of the arithmetic, such as `"feistel-1"`; part of every fingerprint and state."""
        ...

    def order(self, positions: IntArray, /) -> IntArray:
        """int64[k]: index in `[0, n)` of each position."""
        ...

    def order_one(self, position: int, /) -> int:
        """The same for one position, without arrays."""
        ...

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """int64[k]: the positions in that epoch at which `indices` come."""
        ...


def is_stream(source: object) -> TypeGuard[Stream[Any]]:
    """Whether `source` is an endless Stream rather than a finite Source."""
    return callable(getattr(type(source), "locate", None)) and not hasattr(type(source), "__len__")


def is_lane_stream(source: object) -> TypeGuard[LaneStream[Any]]:
    """Whether `source` is a LaneStream, without evaluating its properties."""
    return callable(getattr(type(source), "outputs", None))

"""Endless streams of samples, and their orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.abc.sources import Source
from penstock.types import Batch, IntArray, Location, Schema

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """An endless, addressable run of samples.

    Laws: `self[p]` is a pure function of `p >= 0`; position `p` is lane `p mod lanes`, place `p // lanes`
    in it; row j of `get_batch(positions)` equals `self[positions[j]]`; a negative position is an IndexError, in
    `locate` too; thread-safe, picklable, usable after fork.
    """

    @property
    def lanes(self) -> int:
        """Number of lanes: sub-streams that positions are assigned to in turn."""
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
        """Plain JSON from which the stream can be rebuilt.

        `kind` names what it is, `version` the arithmetic of its order, which a loader's state records. A kind of your
        own can't stand in a recipe file: build the stream in Python.
        """
        ...


class Order(Protocol):
    """Computes the index of each position.

    Laws: a bijection on each epoch `[e·n, (e + 1)·n)`; O(1) memory; `order` and `order_one` agree; a negative
    position, and an index outside `[0, n)`, is an IndexError; outputs for given parameters never change under one
    `version`.
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

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
        """Number of lanes: sub-streams to which positions are assigned in turn."""
        ...

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that determines the samples: data, order, seed, lanes."""
        ...

    def __getitem__(self, position: int, /) -> T_co: ...

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        ...

    def locate(self, position: int, /) -> Location:
        """Return where the sample at `position` comes from. Reads only indexes, no data."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """Return what the stream draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the stream can be rebuilt.

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
        """Return int64[k]: the index in `[0, n)` at each position."""
        ...

    def order_one(self, position: int, /) -> int:
        """Return the index of one position, without arrays."""
        ...

    def inverse(self, indices: IntArray, epoch: int, /) -> IntArray:
        """Return int64[k]: the positions of `indices` in that epoch."""
        ...

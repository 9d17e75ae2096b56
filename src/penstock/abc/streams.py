"""Endless streams of samples, and their orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.abc.sources import Source
from penstock.types import Batch, IntArray, Location, Schema

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """Endless, addressable sequence of samples.

    Contract: `self[p]` is a pure function of `p >= 0`. Position `p` is in lane `p % lanes`, at place `p // lanes`. Row
    j of `get_batch(positions)` equals `self[positions[j]]`. A negative position raises IndexError, also in `locate`. A
    stream is thread-safe, picklable and usable after fork.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> stream.lanes, list(stream.children())
        (1, ['source'])
        >>> stream.get_batch([6, 7])["tokens"][1]
        array([301, 302, 303, 304, 305, 306,   0], dtype=uint16)
        >>> stream.locate(7).epoch, stream.locate(7).index
        (1, 2)
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
        """Return the origin of the sample at `position`. Reads only indexes, no data."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """Return the sources or streams that this stream reads from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the stream can be rebuilt.

        `kind` names the kind of stream, `version` the arithmetic of its order, which a loader's state records. Recipe
        files can't contain kinds of your own: build such streams in Python.
        """
        ...


class Order(Protocol):
    """Order of samples: computes the index of each position.

    Contract: a bijection on each epoch `[e * n, (e + 1) * n)`, in O(1) memory. `order` and `order_one` agree. A
    negative position, or an index outside `[0, n)`, raises IndexError. The results for given parameters never change
    under one `version`.

    Examples:
        >>> import numpy as np
        >>> from penstock.abc import Order
        >>> from penstock.order import GlobalOrder
        >>> order: Order = GlobalOrder(1000, seed=0)
        >>> order.version
        'feistel-1'
        >>> index = order.order_one(1234)
        >>> order.inverse(np.array([index]), 1)
        array([1234])
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

"""Reading a stream in two steps, order first and data later, whether it can do that or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Source, Stream, SupportsPrefetch
from penstock.types import Batch, IntArray

Prefetch: TypeAlias = Callable[..., None]
"""`prefetch` of `penstock.abc.SupportsPrefetch`."""


def samples_of(source: Source[Any], indices: IntArray) -> list[Any]:
    """The samples of a source at `indices`: int64[k], in that order."""
    # Not isinstance(): of Protocols it takes longer than a small batch.
    get_samples: Callable[[IntArray], list[Any]] | None = getattr(source, "get_samples", None)
    if get_samples is not None:
        return get_samples(indices)
    return [source[index] for index in indices.tolist()]


def prefetch_of(node: Any) -> Prefetch | None:
    """What to tell about what is going to be read of a source or stream; None where it has no use for it."""
    return getattr(node, "prefetch", None)


def resolves(stream: object) -> TypeGuard[SupportsPrefetch]:
    """Whether a stream resolves positions; one that takes no hints may be without `prefetch`."""
    return callable(getattr(stream, "get_resolved_samples", None))


def prefetch_parts(children: Sequence[Prefetch | None], owner: NDArray[Any], inner: IntArray, whole: bool) -> None:
    """Tell each child what is going to be read of it.

    Args:
        children: what each wants to be told by.
        owner: [n, k]: number of the child, for each sample of n batches.
        inner: int64[n, k]: what the child knows the sample by.
        whole: see `penstock.abc.SupportsPrefetch`.
    """
    for child, prefetch in enumerate(children):
        if prefetch is None:
            continue
        own = owner == child
        counts = np.count_nonzero(own, axis=1)
        # Batches in which it has as many samples are told together.
        for count in np.unique(counts[counts > 0]).tolist():
            rows = counts == count
            prefetch(inner[rows][own[rows]].reshape(-1, count), whole=whole)


class Ahead:
    """A stream with tickets: its own where it gives them and takes them for single samples too, else positions.

    Attributes:
        stream: the stream.
        prefetch: tells it which tickets are going to be read; None where it has no use for that.
    """

    __slots__ = ("_resolving", "prefetch", "stream")

    def __init__(self, stream: Stream[Any]) -> None:
        self.stream = stream
        self._resolving = resolves(stream)
        self.prefetch = prefetch_of(stream) if self._resolving else None

    def resolve(self, positions: IntArray) -> IntArray:
        """int64[k]: a ticket for each position."""
        stream: Any = self.stream
        return stream.resolve(positions) if self._resolving else positions

    def batch(self, tickets: IntArray) -> Batch:
        """Columns of the samples that the tickets stand for."""
        stream: Any = self.stream
        return stream.get_resolved(tickets) if self._resolving else stream.get_batch(tickets)

    def samples(self, tickets: IntArray) -> list[Any]:
        """The samples that the tickets stand for."""
        stream: Any = self.stream
        if self._resolving:
            return stream.get_resolved_samples(tickets)
        return [stream[position] for position in tickets.tolist()]

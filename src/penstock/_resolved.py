"""Reading a stream in two steps, order first and data later, whether it can do that or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.abc import Source, Stream, SupportsResolvedSamples
from penstock.types import Batch, IntArray


def samples_of(source: Source[Any], indices: IntArray) -> list[Any]:
    """The samples of a source at `indices`: int64[k], in that order."""
    # Not isinstance(): of Protocols it takes longer than a small batch.
    get_samples: Callable[[IntArray], list[Any]] | None = getattr(source, "get_samples", None)
    if get_samples is not None:
        return get_samples(indices)
    return [source[index] for index in indices.tolist()]


class Ahead:
    """A stream with tickets: its own where it gives them and takes them for single samples too, else positions."""

    __slots__ = ("_resolving", "stream")

    def __init__(self, stream: Stream[Any]) -> None:
        self.stream = stream
        self._resolving = isinstance(stream, SupportsResolvedSamples)

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

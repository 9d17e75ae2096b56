"""Applies a function to samples as they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from penstock._columns import stack
from penstock._digest import digest
from penstock._index import as_index, as_indices, as_positions
from penstock._kinds import Seedable, is_stream
from penstock._naming import function_name
from penstock._resolved import Ahead, excluded_below, keep_mark, samples_of, substitutes_of
from penstock._stages import report
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, Stream
from penstock.mix.auxiliary import aux_of
from penstock.order.wrapped import WrappedSource
from penstock.types import Batch, IntArray, Location, Sample, Schema

SampleFn = Callable[..., Sample]
"""sample, and each auxiliary store by its name → sample."""


@overload
def Map(x: Stream[Any], fn: SampleFn, name: str | None = None) -> MappedStream: ...
@overload
def Map(x: Source[Any], fn: SampleFn, name: str | None = None) -> MappedSource: ...
def Map(x: Source[Any] | Stream[Any], fn: SampleFn, name: str | None = None) -> MappedSource | MappedStream:
    """Apply `fn` to each sample of a source or a stream.

    If `x` has auxiliary stores (`WithAux`), `fn` receives each of them as a keyword argument.

    Args:
        x: source or stream.
        fn: pure function, sample → sample. It must be picklable if `x` is to be pickled.
        name: identifies the function in fingerprints and recipes; `module:qualname` by default. Change it when the
            function's results change.

    Returns:
        A source if `x` is a source, else a stream.

    Raises:
        ConfigError: `fn` has no name of its own (a partial, an object) and `name` is missing.

    Examples:
        >>> import penstock as ps
        >>> def count(sample):
        ...     return {**sample, "num_tokens": len(sample["tokens"])}
        >>> counted = ps.Map(ps.open("corpus.pbin"), count, name="count-1")
        >>> counted[3]["num_tokens"]
        8
    """
    name = function_name(fn) if name is None else name
    return MappedStream(x, fn, name) if is_stream(x) else MappedSource(x, fn, name)  # pyright: ignore[reportArgumentType]


class MappedSource(WrappedSource):
    """Source of samples to which a function has been applied, as returned by `Map`.

    Examples:
        >>> import penstock as ps
        >>> shouting = ps.Map(ps.open("docs.jsonl"), lambda line: {"text": line["text"].upper()}, name="upper-1")
        >>> shouting[5]
        {'text': 'OPEN THE GATE SLOWLY.'}
    """

    def __init__(self, source: Source[Any], fn: SampleFn, name: str) -> None:
        super().__init__(source)
        self.fn = fn
        self.name = name
        self._aux = aux_of(source)
        self._fingerprint: str | None = None

    @property
    def schema(self) -> Schema:
        """Open schema: the fields that `fn` returns are unknown."""
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the function's name."""
        if self._fingerprint is None:
            self._fingerprint = digest("map", self.name, self.source.fingerprint)
        return self._fingerprint

    def __getitem__(self, index: int, /) -> Sample:
        return self.fn(self.source[as_index(index, len(self))], **self._aux)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return stack(self.get_samples(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return _applied(self, samples_of(self.source, indices))

    def recipe(self) -> dict[str, Any]:
        """Return the function's name and the source's recipe as plain JSON."""
        return {"kind": "map", "fn": self.name, "source": self.source.recipe()}

    def summary(self) -> str:
        """Return one line: the function's name."""
        return line("Map", {"fn": self.name}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class MappedStream:
    """Stream of samples to which a function has been applied, as returned by `Map`.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Sequential(ps.open("docs.jsonl"))
        >>> shouting = ps.Map(stream, lambda line: {"text": line["text"].upper()}, name="upper-1")
        >>> shouting[5]
        {'text': 'OPEN THE GATE SLOWLY.'}
    """

    def __init__(self, stream: Stream[Any], fn: SampleFn, name: str) -> None:
        self.stream = stream
        self.fn = fn
        self.name = name
        self._ahead = Ahead(stream)
        self._aux = aux_of(stream)
        self._fingerprint: str | None = None
        self.prefetch = self._ahead.prefetch
        self.expect_lanes = getattr(stream, "expect_lanes", None)
        self._has_marks = excluded_below(stream)

    @property
    def lanes(self) -> int:
        """That of the stream."""
        return self.stream.lanes

    @property
    def schema(self) -> Schema:
        """Open schema: the fields that `fn` returns are unknown."""
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the stream's fingerprint and the function's name."""
        if self._fingerprint is None:
            self._fingerprint = digest("map", self.name, self.stream.fingerprint)
        return self._fingerprint

    def __getitem__(self, position: int, /) -> Sample:
        sample = self.stream[position]
        made = self.fn(sample, **self._aux)
        return keep_mark(sample, made) if self._has_marks else made

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        return self.get_resolved(self.resolve(as_positions(positions)))

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: a number per position, for `get_resolved`."""
        return self._ahead.resolve(positions)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples at resolved positions as columns."""
        return stack(self.get_resolved_samples(resolved))

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Sample]:
        """Return the samples at resolved positions."""
        samples = self._ahead.samples(resolved)
        if not self._has_marks:
            return _applied(self, samples)
        plain = [
            dict(sample) if isinstance(sample, dict) else sample for sample in samples
        ]  # a function may take it out
        return list(map(keep_mark, plain, _applied(self, samples)))

    def locate(self, position: int, /) -> Location:
        """Return the stream's location of `position`."""
        return self.stream.locate(position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a position with a substitute for the sample at `position`.

        Raises:
            ConfigError: the stream has no substitutes, or no more of them.
        """
        return substitutes_of(self.stream).substitute(position, attempt)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the function, and as many positions of the stream."""
        return {"kind": "map", "fn": self.name}, {"stream": stop}

    def seeded(self, seed: int, /) -> MappedStream:
        """Return this with `seed`, if the stream was made without a seed."""
        if not isinstance(self.stream, Seedable):
            return self
        return MappedStream(self.stream.seeded(seed), self.fn, self.name)

    def children(self) -> Mapping[str, Stream[Any]]:
        """Return the stream, under the name `stream`."""
        return {"stream": self.stream}

    def recipe(self) -> dict[str, Any]:
        """Return the function's name and the stream's recipe as plain JSON."""
        return {"kind": "map", "fn": self.name, "stream": self.stream.recipe()}

    def summary(self) -> str:
        """Return one line: the function's name."""
        return line("Map", {"fn": self.name}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


def _applied(x: MappedSource | MappedStream, samples: list[Any]) -> list[Sample]:
    """Apply the function to each sample, and report its time apart from reading."""
    fn, aux = x.fn, x._aux  # pyright: ignore[reportPrivateUsage]
    began = time.perf_counter()
    made: list[Sample] = []
    try:
        for sample in samples:
            made.append(fn(sample, **aux))
    except Exception as error:
        error.add_note(f"In {x.summary()}, {_named(samples[len(made)])}")
        raise
    report(f"Map {x.name}", time.perf_counter() - began)
    return made


def _named(sample: Any) -> str:
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    return "of a sample without a key" if key is None else f"of the sample {key!r}"

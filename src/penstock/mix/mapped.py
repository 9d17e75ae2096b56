"""Applies a function to samples as they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, overload

from penstock._kinds import is_stream
from penstock._naming import function_name
from penstock._resolved import excluded_below, keep_mark
from penstock._stages import report
from penstock.abc import Source, Stream
from penstock.mix.auxiliary import aux_of
from penstock.node.over import ChangedStream, ChangedView, Changes
from penstock.types import IntArray, Sample

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


class _Mapped(Changes):
    """A function that is applied to samples."""

    kind, title = "map", "Map"
    fn: SampleFn
    name: str
    _aux: dict[str, Any]

    def own(self) -> dict[str, Any]:
        return {"fn": self.name}

    def change(self, sample: Any, number: int) -> Sample:
        del number
        return self.fn(sample, **self._aux)

    def change_all(self, samples: list[Any], numbers: IntArray) -> list[Sample]:
        """Apply the function to each sample, and report its time separately from reading."""
        del numbers
        began = time.perf_counter()
        made: list[Sample] = []
        try:
            for sample in samples:
                made.append(self.fn(sample, **self._aux))
        except Exception as error:
            error.add_note(f"In {self.summary()}, {_named(samples[len(made)])}")
            raise
        report(f"Map {self.name}", time.perf_counter() - began)
        return made


class MappedSource(_Mapped, ChangedView):
    """Source of samples to which a function has been applied, as returned by `Map`.

    Examples:
        >>> import penstock as ps
        >>> shouting = ps.Map(ps.open("docs.jsonl"), lambda line: {"text": line["text"].upper()}, name="upper-1")
        >>> shouting[5]
        {'text': 'OPEN THE GATE SLOWLY.'}
    """

    def __init__(self, source: Source[Any], fn: SampleFn, name: str) -> None:
        super().__init__(source)
        self.fn, self.name, self._aux = fn, name, aux_of(source)


class MappedStream(_Mapped, ChangedStream):
    """Stream of samples to which a function has been applied, as returned by `Map`.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Sequential(ps.open("docs.jsonl"))
        >>> shouting = ps.Map(stream, lambda line: {"text": line["text"].upper()}, name="upper-1")
        >>> shouting[5]
        {'text': 'OPEN THE GATE SLOWLY.'}
    """

    def __init__(self, stream: Stream[Any], fn: SampleFn, name: str) -> None:
        super().__init__(stream)
        self.fn, self.name, self._aux = fn, name, aux_of(stream)
        self._has_marks = excluded_below(stream)

    def over(self, stream: Any) -> MappedStream:
        return MappedStream(stream, self.fn, self.name)

    def change(self, sample: Any, number: int) -> Sample:
        made = super().change(sample, number)
        return keep_mark(sample, made) if self._has_marks else made

    def change_all(self, samples: list[Any], numbers: IntArray) -> list[Sample]:
        if not self._has_marks:
            return super().change_all(samples, numbers)
        # The function may remove the mark.
        plain = [dict(sample) if isinstance(sample, dict) else sample for sample in samples]
        return list(map(keep_mark, plain, super().change_all(samples, numbers)))


def _named(sample: Any) -> str:
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    return "of a sample without a key" if key is None else f"of the sample {key!r}"

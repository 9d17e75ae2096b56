"""Named stores of files for a source or a stream, and functions applied to samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast, overload

from penstock._access import excluded_below, keep_mark
from penstock._kinds import is_stream
from penstock._naming import function_name
from penstock._threads import report
from penstock.abc import Source, Stream, SupportsFiles
from penstock.errors import ConfigError
from penstock.node.over import ChangedStream, ChangedView, Changes, Node, StreamOver, View
from penstock.node.walk import children_of
from penstock.types import IntArray, Sample

_TAKEN = ("source", "stream")


@overload
def WithAux(x: Stream[Any], /, **aux: SupportsFiles) -> AuxStream: ...
@overload
def WithAux(x: Source[Any], /, **aux: SupportsFiles) -> AuxSource: ...
def WithAux(x: Source[Any] | Stream[Any], /, **aux: Any) -> AuxSource | AuxStream:
    """Attach stores to `x`, so that functions over its samples can look up files.

    Samples don't change. Functions applied with `Map` to the result, or to `Shuffle`, `Skip` or `Take` of it, are
    called as `fn(sample, **aux)`.

    Args:
        x: source or stream.
        aux: name → source with files by name: a WebDataset, a directory, or a JSONL file in Energon's flavor.

    Returns:
        A source if `x` is a source, else a stream.

    Raises:
        ConfigError: `aux` is empty, one has no files by name, or a name is already used.

    Examples:
        >>> import penstock as ps
        >>> def add_caption(sample, captions):
        ...     return {**sample, "caption": captions.get(f"{sample['id']:03}.txt")}
        >>> chats = ps.Take(ps.open("chat-mds"), 0, 6)
        >>> mapped = ps.Map(ps.WithAux(chats, captions=ps.open("pictures")), add_caption, name="captions-1")
        >>> mapped[2]["caption"]
        b'picture 2'
    """
    if not aux:
        raise ConfigError("no auxiliary stores", expected="one or more, by name, as in images=…")
    for name, store in aux.items():
        if not isinstance(store, SupportsFiles):
            raise ConfigError(
                f"{name!r} can't be an auxiliary store: it can't return files by name",
                found=f"a {type(store).__name__}",
                expected="a WebDataset, a folder of files, or a JSONL opened with flavor='energon'",
            )
        if name in _TAKEN or name in aux_of(x):
            raise ConfigError("the name of an auxiliary store is already in use", found=repr(name))
    stores = cast("dict[str, Source[Any]]", aux)
    return AuxStream(x, stores) if is_stream(x) else AuxSource(x, stores)  # pyright: ignore[reportArgumentType]


def aux_of(node: Any) -> dict[str, Any]:
    """Return the auxiliary stores of a source or stream.

    Looks through chains of single children, such as `Shuffle(WithAux(...))`.

    Args:
        node: any source or stream.

    Returns:
        Name → store; empty if there are none.

    Examples:
        >>> import penstock as ps
        >>> from penstock.mix import aux_of
        >>> chats = ps.WithAux(ps.open("chat-mds"), pictures=ps.open("pictures"))
        >>> list(aux_of(ps.Shuffle(chats, seed=0)))
        ['pictures']
    """
    if isinstance(node, _WithAux):
        return {**aux_of(node.below), **node.aux}
    children = children_of(node)
    return aux_of(next(iter(children.values()))) if len(children) == 1 else {}


class _WithAux(Node):
    """Base of sources and streams with named stores."""

    kind = "aux"
    aux: dict[str, Source[Any]]

    @property
    def below(self) -> Any:
        """The source or stream itself."""
        return super().children()[self._name]

    @property
    def _name(self) -> str:
        return next(iter(super().children()))

    def children(self) -> Mapping[str, Any]:
        """Return the source or stream, and the stores under their names."""
        return {**super().children(), **self.aux}

    def identity(self) -> tuple[Any, ...]:
        stores = [[name, store.fingerprint] for name, store in sorted(self.aux.items())]
        return ("aux", self.below.fingerprint, stores)

    def recipe(self) -> dict[str, Any]:
        stores = {name: store.recipe() for name, store in self.aux.items()}
        return {"kind": "aux", self._name: self.below.recipe(), "aux": stores}

    def shown(self) -> dict[str, Any]:
        return {"aux": ",".join(self.aux)}


class AuxSource(_WithAux, View[Any]):
    """Source with auxiliary stores, as returned by `WithAux`.

    Attributes:
        below: the source.
        aux: name → store.

    Examples:
        >>> import penstock as ps
        >>> chats = ps.WithAux(ps.open("chat-mds"), pictures=ps.open("pictures"))
        >>> type(chats).__name__, len(chats), list(chats.aux)
        ('AuxSource', 12, ['pictures'])
    """

    def __init__(self, source: Source[Any], aux: Mapping[str, Source[Any]]) -> None:
        super().__init__(source)
        self.aux = dict(aux)


class AuxStream(_WithAux, StreamOver[Any]):
    """Stream with auxiliary stores, as returned by `WithAux`.

    Attributes:
        below: the stream.
        aux: name → store.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.WithAux(ps.Shuffle(ps.open("chat-mds"), seed=0), pictures=ps.open("pictures"))
        >>> type(stream).__name__, list(stream.aux)
        ('AuxStream', ['pictures'])
    """

    def __init__(self, stream: Stream[Any], aux: Mapping[str, Source[Any]]) -> None:
        super().__init__(stream)
        self.aux = dict(aux)

    def over(self, stream: Any) -> AuxStream:
        return AuxStream(stream, self.aux)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: as many of the stream, and the stores."""
        return {"kind": "aux"}, {"stream": stop, **{name: len(store) for name, store in self.aux.items()}}


SampleFn = Callable[..., Sample]
"""Sample, and each auxiliary store by its name → sample."""


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
    """Base of sources and streams with a function applied to samples."""

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
        made = self.fn(sample, **self._aux)
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

"""Attaches named stores of files to a source or a stream, for the functions that are applied to its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

from penstock._digest import digest
from penstock._kinds import Seedable, is_stream
from penstock._resolved import Ahead, samples_of, substitutes_of
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, Stream, SupportsFiles
from penstock.errors import ConfigError
from penstock.order.wrapped import WrappedSource
from penstock.types import Batch, IntArray, Location, Sample, Schema

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
        ConfigError: there is no store, one has no files by name, or a name is already used.

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
    if isinstance(node, (AuxSource, AuxStream)):
        return {**aux_of(node.below), **node.aux}
    children: Mapping[str, Any] = node.children() if hasattr(type(node), "children") else {}
    return aux_of(next(iter(children.values()))) if len(children) == 1 else {}


class AuxSource(WrappedSource):
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
        self.below = source
        self.aux = dict(aux)
        self._fingerprint: str | None = None

    @property
    def schema(self) -> Schema:
        """That of the source."""
        return self.below.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of the source and the stores."""
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(self.below, self.aux)
        return self._fingerprint

    def __getitem__(self, index: int, /) -> Sample:
        return self.below[index]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return self.below.get_batch(indices)

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return samples_of(self.below, indices)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the source, under the name `source`, and the stores under their names."""
        return {"source": self.below, **self.aux}

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        return {"kind": "aux", "source": self.below.recipe(), "aux": _recipes(self.aux)}

    def summary(self) -> str:
        """Return one line: the stores' names."""
        return line("AuxSource", {"aux": ",".join(self.aux)}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class AuxStream:
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
        self.below = stream
        self.aux = dict(aux)
        self._fingerprint: str | None = None
        self._ahead = Ahead(stream)
        self.prefetch = self._ahead.prefetch
        self.expect_lanes = getattr(stream, "expect_lanes", None)

    @property
    def lanes(self) -> int:
        """That of the stream."""
        return self.below.lanes

    @property
    def schema(self) -> Schema:
        """That of the stream."""
        return self.below.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of the stream and the stores."""
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(self.below, self.aux)
        return self._fingerprint

    def __getitem__(self, position: int, /) -> Sample:
        return self.below[position]

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `positions` (int64[k]) as columns, in that order."""
        return self.below.get_batch(positions)

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
        """Return the stream's location of `position`."""
        return self.below.locate(position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """Return a position with a substitute for the sample at `position`.

        Raises:
            ConfigError: the stream has no substitutes, or no more of them.
        """
        return substitutes_of(self.below).substitute(position, attempt)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: as many of the stream, and the stores."""
        return {"kind": "aux"}, {"stream": stop, **{name: len(store) for name, store in self.aux.items()}}

    def seeded(self, seed: int, /) -> AuxStream:
        """Return this with `seed`, if the stream was made without a seed."""
        return AuxStream(self.below.seeded(seed), self.aux) if isinstance(self.below, Seedable) else self

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """Return the stream, under the name `stream`, and the stores under their names."""
        return {"stream": self.below, **self.aux}

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        return {"kind": "aux", "stream": self.below.recipe(), "aux": _recipes(self.aux)}

    def summary(self) -> str:
        """Return one line: the stores' names."""
        return line("AuxStream", {"aux": ",".join(self.aux)}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


def _fingerprint(below: Any, aux: Mapping[str, Source[Any]]) -> str:
    return digest("aux", below.fingerprint, [[name, store.fingerprint] for name, store in sorted(aux.items())])


def _recipes(aux: Mapping[str, Source[Any]]) -> dict[str, Any]:
    return {name: store.recipe() for name, store in aux.items()}

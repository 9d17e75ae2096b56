"""Attaches named stores of files to a source or a stream, for the functions that are applied to its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, overload

from penstock._kinds import is_stream
from penstock.abc import Source, Stream, SupportsFiles
from penstock.errors import ConfigError
from penstock.node.over import Node, StreamOver, View
from penstock.node.walk import children_of

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
    if isinstance(node, _WithAux):
        return {**aux_of(node.below), **node.aux}
    children = children_of(node)
    return aux_of(next(iter(children.values()))) if len(children) == 1 else {}


class _WithAux(Node):
    """Named stores next to a source or stream."""

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

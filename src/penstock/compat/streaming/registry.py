"""`streams_registry`: kinds of streams by name, for `StreamingDataset(stream_name=…)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, overload

from penstock._plug_ins import imported, plug_ins
from penstock.compat.streaming.streams import Stream
from penstock.errors import ConfigError

_Maker = TypeVar("_Maker", bound=Callable[..., Any])
_GROUP = "streaming_streams_registry"  # the original's, so that its packages are found


class Registry:
    """Name → a class or a function that makes a stream; the original's methods.

    Packages add to it by entry points of the group `streaming_streams_registry`.
    """

    def __init__(self, made: dict[str, Callable[..., Any]]) -> None:
        self._made = made

    @overload
    def register(self, name: str, *, func: _Maker) -> _Maker: ...
    @overload
    def register(self, name: str, *, func: None = None) -> Callable[[_Maker], _Maker]: ...
    def register(self, name: str, *, func: Any = None) -> Any:
        """Add what makes streams, or decorate it; a name that is known is replaced."""
        if func is None:
            return partial(self._add, name)
        return self._add(name, func)

    register_class = register
    __call__ = register

    def get(self, name: str) -> Callable[..., Any]:
        """What makes streams of this name.

        Raises:
            ConfigError: there is none.
        """
        if name in self._made:
            return self._made[name]
        point = plug_ins(_GROUP, ()).get(name)
        if point is None:
            hint = "streams_registry.register(name, func=…) of penstock.compat.streaming.base.stream adds one"
            raise ConfigError("unknown kind of stream", found=repr(name), expected=", ".join(self._made), hint=hint)
        return imported(point)

    def get_all(self) -> dict[str, Callable[..., Any]]:
        """All that were registered, by name."""
        return dict(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made or name in plug_ins(_GROUP, ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def _add(self, name: str, func: Any) -> Any:
        if not callable(func):
            raise ConfigError(f"the stream {name!r} is not a class or function", found=type(func).__name__)
        self._made[name] = func
        return func


streams_registry = Registry({"stream": Stream})


def made_stream(name: str, given: dict[str, Any]) -> Stream:
    """A stream of a registered kind.

    Raises:
        ConfigError: there is none of this name, or it makes something else.
    """
    made = streams_registry.get(name)(**given)
    if not isinstance(made, Stream):
        raise ConfigError(
            f"the stream {name!r} is not a Stream", found=type(made).__name__, expected="a Stream of penstock"
        )
    return made

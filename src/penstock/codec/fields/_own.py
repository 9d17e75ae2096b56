"""Additional encodings of MDS columns, from a program or a package.

Available in a process are those that a program registers before it opens or writes data, and those of installed
packages (entry points of the group `penstock.mds_encodings`), also in worker processes and commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Protocol

from penstock._optional import imported, plug_ins
from penstock.codec.fields._codec import FieldCodec, bad_value, damaged
from penstock.errors import ConfigError, PenstockError
from penstock.types import Buffer

GROUP = "penstock.mds_encodings"


class Encoding(Protocol):
    """Conversion between values of a column and bytes, as by the original's `Encoding` classes."""

    @property
    def size(self) -> int | None:
        """Bytes of every value; None if they vary."""
        ...

    def encode(self, obj: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


_own: dict[str, Callable[[], Encoding]] = {}


def register_encoding(name: str, make: Callable[[], Encoding]) -> None:
    """Register an encoding for columns, in this process.

    Args:
        name: name of the encoding in an index. One of the 28 built-in encodings may be replaced.
        make: class or function that returns the encoding. With a method `from_str(config)`, `name:config` is an
            encoding too.

    Raises:
        ConfigError: the name is invalid, or `make` doesn't return an encoding.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset, MDSWriter, register_encoding
        >>> class Celsius:
        ...     size = None
        ...
        ...     def encode(self, obj):
        ...         return f"{obj} °C".encode()
        ...
        ...     def decode(self, data):
        ...         return float(data.decode().removesuffix(" °C"))
        >>> register_encoding("celsius", Celsius)
        >>> with MDSWriter(columns={"water": "celsius"}, out="mds") as writer:
        ...     writer.write({"water": 12.5})
        >>> LocalDataset("mds")[0]
        {'water': 12.5}
    """
    if not name or ":" in name:
        raise ConfigError("an encoding needs a name without a colon", found=repr(name))
    if not callable(make):
        raise ConfigError(f"the encoding {name!r} is not a class", found=type(make).__name__)
    _own[name] = make


def unregister_encoding(name: str) -> None:
    """Remove an encoding; raise `KeyError` if none is registered with this name."""
    del _own[name]


def own_encodings() -> Mapping[str, Callable[[], Encoding]]:
    """Return name → factory of all encodings registered here; packages aren't imported."""
    return dict(_own)


def own_field(encoding: str, *, of_packages: bool = False) -> FieldCodec | None:
    """Return the codec of a column with an added encoding; None if it isn't one. Raises `ConfigError`.

    Args:
        encoding: its name, with its configuration.
        of_packages: also search installed packages, which takes some milliseconds the first time.
    """
    name, colon, config = encoding.partition(":")
    make: Any = _own.get(name)
    if make is None:
        point = _points().get(name) if of_packages else None
        if point is None:
            return None
        make = imported(point)
    if colon and not hasattr(make, "from_str"):
        raise ConfigError(f"the encoding {name!r} takes no configuration", found=repr(encoding), expected=repr(name))
    made: Encoding = make.from_str(config) if colon else make()
    encode, decode = partial(_encode, encoding, made), partial(_decode, encoding, made)
    return FieldCodec(encoding, made.size, "custom", None, None, False, encode, decode)


@cache
def _points() -> Mapping[str, Any]:
    return plug_ins(GROUP, ())


def _encode(encoding: str, made: Encoding, value: Any) -> bytes:
    """Encode a value by the added class; bytes are stored as they are, as in every encoding."""
    data: Any = value if isinstance(value, bytes) else made.encode(value)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise bad_value(encoding, data, "bytes from its encode()")
    if made.size is not None and len(data) != made.size:
        raise ConfigError(
            f"a value of the encoding {encoding!r} has the wrong size", found=len(data), expected=made.size
        )
    return bytes(data)


def _decode(encoding: str, made: Encoding, data: Buffer) -> Any:
    try:
        return made.decode(bytes(data))
    except PenstockError:
        raise
    except Exception as error:
        raise damaged(
            encoding, f"{type(error).__name__}: {error}", f"bytes that {type(made).__name__}.decode() accepts"
        ) from error

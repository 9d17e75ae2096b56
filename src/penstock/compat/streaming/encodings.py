"""The original's `streaming.base.format.mds.encodings`: encodings of column values as bytes, including custom ones.

```
from penstock.compat.streaming.base.format.mds.encodings import Encoding, _encodings

class Complex(Encoding):
    size = 16
    def encode(self, obj): return np.complex128(obj).tobytes()
    def decode(self, data): return complex(np.frombuffer(data, np.complex128)[0])

_encodings["complex"] = Complex
```
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from typing import Any

from penstock.codec.fields import mds_encodings, mds_field, own_encodings, register_encoding, unregister_encoding
from penstock.errors import ConfigError

__all__ = [
    "Encoding",
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]


class Encoding(ABC):
    """Base class of encodings, which convert values of one column to bytes and back.

    Attributes:
        size: size of every value in bytes; None if it varies.
    """

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Return the value of its bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        """Raise the original's `AttributeError` for a value of another type."""
        if not isinstance(data, expected_type):
            raise AttributeError(f"a value of {type(data).__name__}, expected {expected_type}")


class _Encodings(MutableMapping[str, Any]):
    """Mapping from name to class of all encodings; added encodings apply to datasets opened or written afterwards."""

    def __getitem__(self, name: str) -> Any:
        own = own_encodings()
        if name in own:
            return own[name]
        if name not in mds_encodings():
            raise KeyError(name)
        return _class_of(name)

    def __setitem__(self, name: str, value: Any) -> None:
        register_encoding(name, value)

    def __delitem__(self, name: str) -> None:
        unregister_encoding(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*mds_encodings(), *own_encodings())))

    def __len__(self) -> int:
        return len(list(iter(self)))


_encodings: MutableMapping[str, Any] = _Encodings()


def get_mds_encodings() -> set[str]:
    """Return the names of all encodings."""
    return set(_encodings)


def is_mds_encoding(encoding: str) -> bool:
    """Return whether a column may have the encoding."""
    try:
        mds_field(encoding)
    except ConfigError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Return whether decoding runs no code from the data."""
    return encoding != "pkl"


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Encode a value; bytes are accepted unchanged. Raises `ConfigError`, also an `AttributeError`."""
    return mds_field(encoding).encode(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Decode a value; `pkl` runs its code, as in the original. Raises `FormatError`."""
    return mds_field(encoding, trust=True).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Return the size of every value in bytes; None if it varies. Raises `ConfigError`."""
    return mds_field(encoding).size_bytes


def _class_of(name: str) -> type[Encoding]:
    field = mds_field(name, trust=True)

    class BuiltIn(Encoding):
        size = field.size_bytes

        def encode(self, obj: Any) -> bytes:
            return field.encode(obj)

        def decode(self, data: bytes) -> Any:
            return field.decode(data)

        @classmethod
        def from_str(cls, text: str) -> Any:
            """Return the encoding with a configuration, such as `int16:3,4` of `ndarray`."""
            return _class_of(f"{name}:{text}")()

    BuiltIn.__name__ = BuiltIn.__qualname__ = name
    return BuiltIn

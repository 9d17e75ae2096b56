"""The type of an encoding, and the errors that all encodings share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, Corrupt, TooLarge, Truncated
from penstock.types import Buffer


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """One column: value → bytes, and back. Picklable.

    Errors of `encode` are `ConfigError`, and `TooLarge` for numbers out of range. Errors of `decode` are `FormatError`
    without a path, their `offset_bytes` counted from the start of the value: the caller adds where it stands.

    Attributes:
        encoding: the name it was requested by, such as `"ndarray:int16:3,4"`.
        size_bytes: size of every value, None where it varies.
        kind, dtype, shape: as in `penstock.types.Field`.
        unsafe: decoding runs code.
        encode: bytes of a value.
        decode: value of its bytes, given exactly. Arrays are read-only views of them.
    """

    encoding: str
    size_bytes: int | None
    kind: str
    dtype: str | None
    shape: tuple[int | None, ...] | None
    unsafe: bool
    encode: Callable[[Any], bytes]
    decode: Callable[[Buffer], Any]


class UnfitValue(ConfigError, TypeError, AttributeError):
    """A value that an encoding does not hold: `AttributeError` for code that was written against the original."""


class UnfitNumber(TooLarge, OverflowError):
    """A number that an encoding is too narrow for: `OverflowError` for code that was written against the original."""


def bad_value(encoding: str, value: object, expected: str, hint: str | None = None) -> UnfitValue:
    """A value that this encoding does not hold."""
    found = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return UnfitValue(f"a value doesn't fit the encoding {encoding!r}", found=found, expected=expected, hint=hint)


def out_of_range(encoding: str, value: object, expected: str) -> UnfitNumber:
    """A number that this encoding can't hold."""
    text = str(value) if not isinstance(value, int) or value.bit_length() < 256 else "a number with too many digits"
    return UnfitNumber(f"a number doesn't fit the encoding {encoding!r}", found=text, expected=expected)


def damaged(encoding: str, found: object, expected: str | None = None, offset_bytes: int = 0) -> Corrupt:
    """Bytes that no value of this encoding has."""
    what = f"the bytes are not a valid {encoding!r} value"
    return Corrupt(what, offset_bytes=offset_bytes, found=str(found), expected=expected)


def cut_off(encoding: str, data: Buffer, expected_bytes: int) -> Truncated:
    """A value that ends too early."""
    return Truncated(
        f"a {encoding!r} value is truncated",
        offset_bytes=len(data),
        found=f"{len(data)} bytes",
        expected=f"{expected_bytes} bytes",
    )


def text_of(encoding: str, data: Buffer) -> str:
    """The UTF-8 text that fills `data`."""
    try:
        return str(data, "utf-8")  # pyright: ignore[reportCallIssue, reportArgumentType]
    except UnicodeDecodeError as error:
        raise damaged(
            encoding, f"{error.reason}, byte {error.object[error.start]:#04x}", "UTF-8", error.start
        ) from error


def utf8(encoding: str, text: str) -> bytes:
    """Text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise bad_value(encoding, text, "text without lone surrogates") from error

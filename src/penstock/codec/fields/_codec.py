"""The type of an encoding, and errors shared by all encodings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, Corrupt, TooLarge, Truncated
from penstock.types import Buffer


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """Encoder and decoder of one column. Picklable.

    Errors of `encode` are `ConfigError`, and `TooLarge` for numbers out of range. Errors of `decode` are `FormatError`
    without a path, their `offset_bytes` counted from the start of the value: the caller adds the start of the value.

    Attributes:
        encoding: the requested name, such as `"ndarray:int16:3,4"`.
        size_bytes: size of every value, None if it varies.
        kind, dtype, shape: as in `penstock.types.Field`.
        unsafe: decoding runs code.
        encode: returns the bytes of a value.
        decode: returns the value of exactly its bytes. Arrays are read-only views of them.
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
    """Value that doesn't fit an encoding; an `AttributeError` for code that was written for mosaicml-streaming."""


class UnfitNumber(TooLarge, OverflowError):
    """Number out of an encoding's range; an `OverflowError` for code that was written for mosaicml-streaming."""


def bad_value(encoding: str, value: object, expected: str, hint: str | None = None) -> UnfitValue:
    found = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return UnfitValue(f"a value doesn't fit the encoding {encoding!r}", found=found, expected=expected, hint=hint)


def out_of_range(encoding: str, value: object, expected: str) -> UnfitNumber:
    text = str(value) if not isinstance(value, int) or value.bit_length() < 256 else "a number with too many digits"
    return UnfitNumber(f"a number doesn't fit the encoding {encoding!r}", found=text, expected=expected)


def damaged(encoding: str, found: object, expected: str | None = None, offset_bytes: int = 0) -> Corrupt:
    """Return the error for bytes that aren't a value of this encoding."""
    what = f"the bytes are not a valid {encoding!r} value"
    return Corrupt(what, offset_bytes=offset_bytes, found=str(found), expected=expected)


def cut_off(encoding: str, data: Buffer, expected_bytes: int) -> Truncated:
    return Truncated(
        f"a {encoding!r} value is truncated",
        offset_bytes=len(data),
        found=f"{len(data)} bytes",
        expected=f"{expected_bytes} bytes",
    )


def text_of(encoding: str, data: Buffer) -> str:
    try:
        return str(data, "utf-8")  # pyright: ignore[reportCallIssue, reportArgumentType]
    except UnicodeDecodeError as error:
        raise damaged(
            encoding, f"{error.reason}, byte {error.object[error.start]:#04x}", "UTF-8", error.start
        ) from error


def utf8(encoding: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise bad_value(encoding, text, "text without lone surrogates") from error

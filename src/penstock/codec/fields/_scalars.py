"""Encodings of bytes, text and numbers."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from penstock.codec.fields._codec import bad_value, cut_off, damaged, out_of_range, text_of, utf8
from penstock.types import Buffer


def encode_bytes(value: Any) -> bytes:
    """Raise an error: only called with values that aren't `bytes`."""
    raise bad_value("bytes", value, "bytes")


def decode_bytes(data: Buffer) -> bytes:
    return bytes(data)


def encode_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise bad_value("str", value, "str")
    return utf8("str", value)


def decode_str(data: Buffer) -> str:
    return text_of("str", data)


def encode_int(value: Any) -> bytes:
    """Encode a whole number as int64; True is 1."""
    if not isinstance(value, int | np.integer):
        raise bad_value("int", value, "int")
    try:
        return int(value).to_bytes(8, "little", signed=True)
    except OverflowError:
        raise out_of_range("int", value, "-2^63 to 2^63 - 1") from None


def decode_int(data: Buffer) -> int:
    _check_size("int", data, 8)
    return int.from_bytes(data, "little", signed=True)  # pyright: ignore[reportArgumentType]


def encode_sized_int(name: str, value: Any) -> bytes:
    """Encode a value that `np.<name>(value)` accepts and stores unchanged."""
    number = value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    try:
        whole = int(number)
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_value(name, value, "an integer") from error
    if not isinstance(number, str | bytes) and whole != number:
        raise bad_value(name, value, "an integer", "Round it first: a fraction would be lost")
    limits = np.iinfo(name)
    if not limits.min <= whole <= limits.max:
        raise out_of_range(name, whole, f"{limits.min} to {limits.max}")
    return whole.to_bytes(limits.bits // 8, "little", signed=limits.min < 0)


def encode_sized_float(name: str, value: Any) -> bytes:
    """Encode a value that `np.<name>(value)` accepts, rounded to its width; finite numbers never become infinite."""
    try:
        with np.errstate(over="ignore"):
            number = np.asarray(np.dtype(name).type(value))
            lost = np.isinf(number).any() and not np.isinf(np.float64(value)).any()
    except (TypeError, ValueError) as error:
        raise bad_value(name, value, "a number") from error
    except OverflowError:
        lost, number = True, np.zeros(1)
    if lost:
        raise out_of_range(name, value, f"at most {np.finfo(name).max}")
    if number.size != 1:
        raise bad_value(name, value, "one number")
    return number.astype(np.dtype(name).newbyteorder("<"), copy=False).tobytes()


def decode_sized(name: str, data: Buffer) -> Any:
    dtype = np.dtype(name).newbyteorder("<")
    _check_size(name, data, dtype.itemsize)
    return np.frombuffer(data, dtype)[0]


def encode_int_text(encoding: str, value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise bad_value(encoding, value, "int", "A bool would be stored as text that can't be read back")
    try:
        return str(value).encode()
    except ValueError:
        raise out_of_range(encoding, value, "no more digits than Python can parse") from None


def encode_float_text(encoding: str, value: Any) -> bytes:
    if not isinstance(value, float):
        raise bad_value(encoding, value, "float")
    return str(value).encode()


def encode_decimal_text(encoding: str, value: Any) -> bytes:
    if not isinstance(value, Decimal):
        raise bad_value(encoding, value, "decimal.Decimal")
    return str(value).encode()


def decode_number_text(encoding: str, kind: type[int] | type[float] | type[Decimal], data: Buffer) -> Any:
    """Return the number, parsed as Python does."""
    text = text_of(encoding, data)
    try:
        return kind(text)
    except (ValueError, InvalidOperation) as error:
        raise damaged(encoding, repr(text[:40]), f"the text of a number ({kind.__name__})") from error


def _check_size(encoding: str, data: Buffer, size_bytes: int) -> None:
    if len(data) < size_bytes:
        raise cut_off(encoding, data, size_bytes)
    if len(data) > size_bytes:
        raise damaged(encoding, f"{len(data)} bytes", f"{size_bytes} bytes", size_bytes)

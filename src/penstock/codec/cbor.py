"""Decoder of CBOR values (RFC 8949), compatible with the package `cbor` except for tags of other types."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from penstock._limits import MOST_NESTING

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_OPEN, _BREAK = 31, 0xFF
_NAMED = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_TIME, _BIG, _BIG_NEGATIVE = 1, 2, 3


def decode_cbor(data: bytes) -> Any:
    """Return the value; tags other than big numbers and times (UTC) are dropped.

    Raises:
        ValueError: the data is truncated, too long, nested too deep, or not CBOR.
    """
    value, end = _value(data, 0, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the value")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return a value and its end."""
    if depth > MOST_NESTING:
        raise ValueError(f"more than {MOST_NESTING} nested values at byte {at}")
    kind, how = divmod(_taken(data, at, 1)[0], 32)
    if kind == _SIMPLE:
        return _simple(data, at, how)
    count, start = _count(data, at, kind, how)
    if kind == _UNSIGNED:
        return count, start
    if kind == _NEGATIVE:
        return -1 - count, start
    if kind in (_BYTES, _TEXT):
        stored, end = _string(data, start, kind, count)
        return (stored.decode() if kind == _TEXT else stored), end
    if kind == _TAG:
        inner, end = _value(data, start, depth + 1)
        return _tagged(count, inner), end
    items = _Items(data, start, depth + 1, None if count < 0 else count * (1 + (kind == _MAP)))
    if kind == _ARRAY:
        return list(items), items.at
    return _mapping(items, at), items.at


def _count(data: bytes, at: int, kind: int, how: int) -> tuple[int, int]:
    """Return the number after the first byte, -1 for an indefinite length, and its end."""
    if how < 24:
        return how, at + 1
    if how == _OPEN and kind in (_BYTES, _TEXT, _ARRAY, _MAP):
        return -1, at + 1
    if how > 27:
        raise ValueError(f"invalid CBOR: a length of type {how} at byte {at}")
    n_bytes = 1 << (how - 24)
    return int.from_bytes(_taken(data, at + 1, n_bytes)), at + 1 + n_bytes


def _simple(data: bytes, at: int, how: int) -> tuple[Any, int]:
    if how in _NAMED:
        return _NAMED[how], at + 1
    if how in _FLOATS:
        size = struct.calcsize(_FLOATS[how])
        return struct.unpack(_FLOATS[how], _taken(data, at + 1, size))[0], at + 1 + size
    raise ValueError(f"invalid CBOR: a simple value of type {how} at byte {at}")


def _string(data: bytes, at: int, kind: int, count: int) -> tuple[bytes, int]:
    if count >= 0:
        return _taken(data, at, count), at + count
    parts: list[bytes] = []
    while (first := _taken(data, at, 1)[0]) != _BREAK:
        if first >> 5 != kind or first & 31 == _OPEN:
            raise ValueError(f"invalid CBOR: a string that contains another type at byte {at}")
        count, at = _count(data, at, kind, first & 31)
        parts.append(_taken(data, at, count))
        at += count
    return b"".join(parts), at + 1


class _Items:
    """Values of a list or map, up to their number or a break."""

    def __init__(self, data: bytes, at: int, depth: int, count: int | None) -> None:
        self.data, self.at, self.depth, self.left = data, at, depth, count

    def __iter__(self) -> Iterator[Any]:
        while self.left != 0:
            if self.left is None and _taken(self.data, self.at, 1)[0] == _BREAK:
                self.at += 1
                return
            value, self.at = _value(self.data, self.at, self.depth)
            yield value
            self.left = None if self.left is None else self.left - 1


def _mapping(items: _Items, at: int) -> dict[Any, Any]:
    walk, made = iter(items), dict[Any, Any]()
    for key in walk:
        try:
            value = next(walk)
            made[key] = value
        except StopIteration:
            raise ValueError(f"invalid CBOR: a key without a value in the map at byte {at}") from None
        except TypeError:
            raise ValueError(f"a {type(key).__name__} as a key in the map at byte {at}") from None
    return made


def _tagged(tag: int, value: Any) -> Any:
    if tag in (_BIG, _BIG_NEGATIVE):
        if not isinstance(value, bytes):
            raise ValueError(f"invalid CBOR: a big number of type {type(value).__name__}")
        number = int.from_bytes(value)
        return number if tag == _BIG else -1 - number
    if tag == _TIME and isinstance(value, int | float):
        try:
            return datetime.fromtimestamp(value, UTC).replace(tzinfo=None)
        except (OverflowError, OSError) as error:
            raise ValueError(f"an invalid time: {error}") from None
    return value


def _taken(data: bytes, at: int, count: int) -> bytes:
    if count > len(data) - at:
        raise ValueError(f"CBOR ends early: {count} bytes of a value at byte {at}, {max(0, len(data) - at)} are there")
    return data[at : at + count]

"""Pickles of plain values, read without `pickle`: None, booleans, numbers, text, bytes, lists, tuples, dicts, sets.

Protocols 2 to 5. Opcodes that import or call anything raise an error, so no pickle runs code. Keys of
dicts and items of sets are None, booleans, text, bytes, integers below 2^60, or tuples of these: the hash of nested
tuples may take forever, and other numbers may all have the same hash. Memory: at most about 60 bytes per byte of the
pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.codec._pickle_opcodes import RUNS_CODE
from penstock.errors import Corrupt, UnsafeData

_PROTO, _STOP = 0x80, ord(".")
_SINGLE = (type(None), bool, str, bytes)
_MOST_KEY = 1 << 60

_NUMBERS = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
_VALUES: dict[int, Callable[[], Any]] = {
    ord("N"): lambda: None, 0x88: lambda: True, 0x89: lambda: False,
    ord("]"): list, ord("}"): dict, ord(")"): tuple, 0x8F: set,
}  # fmt: skip
_SIZED: dict[int, tuple[int, Callable[[bytes], Any]]] = {
    0x8A: (1, lambda data: int.from_bytes(data, "little", signed=True)),
    0x8B: (4, lambda data: int.from_bytes(data, "little", signed=True)),
    **{
        code: (size, lambda data: data.decode("utf-8", "surrogatepass"))
        for code, size in ((0x8C, 1), (0x58, 4), (0x8D, 8))
    },
    **{code: (size, bytes) for code, size in ((0x43, 1), (0x42, 4), (0x8E, 8))},
    0x96: (8, bytearray),
}
"""Opcode → size of its length field, and the conversion of its bytes."""
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUTS, _GETS = {ord("q"): 1, ord("r"): 4}, {ord("h"): 1, ord("j"): 4}


def decode_plain_pickle(data: bytes) -> Any:
    """Return the value of a pickle that contains only plain values.

    Raises:
        UnsafeData: the pickle imports or calls something.
        Corrupt: the data isn't such a pickle, or is truncated.
    """
    if data[:1] != b"\x80" or not 2 <= data[1] <= 5:
        raise Corrupt("not a pickle of protocol 2 to 5", found=f"{data[:2]!r}…")
    try:
        return _Machine(data).value()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise Corrupt("a damaged pickle", found=f"{type(error).__name__}: {error}") from None


class _Machine:
    """Stack machine: values, marked heights, and memoized values."""

    __slots__ = ("_data", "_marks", "_memo", "_place", "_stack")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 2
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        while (code := self._data[self._place]) != _STOP:
            self._place += 1
            self._step(code)
        [value] = self._stack
        if self._place + 1 != len(self._data):
            raise ValueError("bytes follow the end")
        return value

    def _step(self, code: int) -> None:
        stack = self._stack
        if code in _SIZED:
            size_bytes, made = _SIZED[code]
            stack.append(made(self._bytes(self._unsigned(size_bytes))))
        elif code in _NUMBERS:
            form = _NUMBERS[code]
            stack.append(struct.unpack(form, self._bytes(struct.calcsize(form)))[0])
        elif code in _VALUES:
            stack.append(_VALUES[code]())
        elif code in _GETS:
            stack.append(self._memo[self._unsigned(_GETS[code])])
        elif code == 0x94:  # MEMOIZE
            self._memo[len(self._memo)] = stack[-1]
        elif code in _PUTS:
            self._memo[self._unsigned(_PUTS[code])] = stack[-1]
        elif code == ord("("):
            self._marks.append(len(stack))
        elif code in _TUPLES:
            stack.append(tuple(self._taken(len(stack) - _TUPLES[code])))
        elif code == 0x95:  # FRAME: its size is a hint for prefetching
            self._unsigned(8)
        else:
            self._gather(code)

    def _gather(self, code: int) -> None:
        """Run opcodes that collect values into the one below them."""
        stack = self._stack
        if code in b"as":  # APPEND, SETITEM
            items = [stack.pop()] if code == ord("a") else [stack.pop(-2), stack.pop()]
        elif code in b"etu\x90\x91":  # APPENDS, TUPLE, SETITEMS, ADDITEMS, FROZENSET
            items = self._taken(self._marks.pop())
        else:
            raise _refusal(code, self._place - 1)
        if code in b"ae":
            list.extend(stack[-1], items)
        elif code in b"su":
            dict.update(stack[-1], zip(map(_hashable, items[::2]), items[1::2], strict=True))
        elif code == 0x90:
            set.update(stack[-1], map(_hashable, items))
        else:
            stack.append(tuple(items) if code == ord("t") else frozenset(map(_hashable, items)))

    def _taken(self, place: int) -> list[Any]:
        if not 0 <= place <= len(self._stack):
            raise ValueError("a value is missing")
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _unsigned(self, size_bytes: int) -> int:
        return int.from_bytes(self._bytes(size_bytes), "little")

    def _bytes(self, size_bytes: int) -> bytes:
        data = self._data[self._place : self._place + size_bytes]
        if len(data) != size_bytes:
            raise ValueError(f"it ends at byte {len(self._data)}")
        self._place += size_bytes
        return data


def _hashable(value: Any) -> Any:
    if not (all(map(_is_single, value)) if type(value) is tuple else _is_single(value)):
        raise ValueError(f"a key of type {type(value).__name__}")
    return value


def _is_single(value: Any) -> bool:
    return type(value) in _SINGLE or (type(value) is int and abs(value) < _MOST_KEY)


def _refusal(code: int, place: int) -> Exception:
    name = RUNS_CODE.get(code)
    if name is None:
        return ValueError(f"the opcode 0x{code:02x} at byte {place}")
    return UnsafeData("a pickle runs code when it is decoded", offset_bytes=place, found=f"the opcode {name}")

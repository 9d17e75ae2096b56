"""Lines of JSONL → the text of one field of each, as strictly as Python's json reads it.

Good lines are decoded by msgspec, which builds nothing but the one field. It is only believed where it can't be laxer
than json (see `penstock.formats.jsonl.scan`); what it refuses is read again by json, for its answer or for the reason.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from penstock.errors import ConfigError
from penstock.formats.jsonl.scan import believable, fault_of, maybe_deep

_SEPARATOR = re.compile(r"(?<!\\)\.")
_MOST_KEYS = 16
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Texts:
    """What a block of lines holds.

    Attributes:
        texts: UTF-8, of the good lines in order.
        places: the number of each one's line in the block, from 0; None where all lines are good.
        faults: number of the line in the block → why it gives no text.
        lines: lines in all; iterate for their lengths.
    """

    texts: list[bytes]
    places: list[int] | None
    faults: dict[int, str]
    lines: list[bytes]


class TextReader:
    """Blocks of lines → the texts of one field. Memory: a few times a block; for a faulty line, what json builds.

    Args:
        field: a key, or keys joined by dots; see `parse_field`.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self._keys = parse_field(field)
        self._decode, self._pick = _typed_decoder(self._keys)

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        decode, pick = self._decode, self._pick
        if believable(block, lines):
            try:
                texts = [pick(decode(line)).encode() for line in lines]
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return self._read_doubtful(lines)
            if not maybe_deep(lines, np.fromiter(map(len, lines), np.int64, len(lines))):
                return Texts(texts, None, {}, lines)
        return self._read_doubtful(lines)

    def _read_doubtful(self, lines: list[bytes]) -> Texts:
        texts: list[bytes] = []
        places: list[int] = []
        faults: dict[int, str] = {}
        for place, line in enumerate(lines):
            found = self._text_of(line)
            if isinstance(found, bytes):
                texts.append(found)
                places.append(place)
            else:
                faults[place] = found
        return Texts(texts, places, faults, lines)

    def _text_of(self, line: bytes) -> bytes | str:
        """The text as UTF-8, or why there is none."""
        if believable(line, [line]) and not maybe_deep([line], np.array([len(line)])):
            try:
                return self._pick(self._decode(line)).encode()
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass
        fault = fault_of(line)
        if fault is not None:
            return fault if fault.startswith(("a ", "not ")) else f"not JSON: {fault}"
        value = json.loads(line)
        for depth, key in enumerate(self._keys):
            if not isinstance(value, dict):
                place = f"field {'.'.join(self._keys[:depth])!r}" if depth else "the line"
                return f"{place} is {_KINDS[type(value)]}, not an object"
            if key not in value:
                return f"no field {self._field!r}"
            value = value[key]
        if not isinstance(value, str):
            return f"field {self._field!r} is {_KINDS[type(value)]}, not text"
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            return f"field {self._field!r} has a lone surrogate, {value[error.start]!a}, which UTF-8 can't hold"


def parse_field(field: str) -> tuple[str, ...]:
    r"""`"meta.text"` → `("meta", "text")`. A dot inside a key is written `\.`.

    Raises:
        ConfigError: an empty key, or more than 16 of them.
    """
    keys = tuple(key.replace("\\.", ".") for key in _SEPARATOR.split(field))
    if not all(keys) or len(keys) > _MOST_KEYS:
        raise ConfigError(
            "not the name of a field",
            found=repr(field),
            expected="a key, or keys joined by dots, such as meta.text",
            hint=f"Did you mean {field[1:]!r}?" if len(keys) == 2 and field.startswith(".") else None,
        )
    return keys


@functools.lru_cache(maxsize=8)
def _typed_decoder(keys: tuple[str, ...]) -> tuple[Callable[[bytes], Any], Callable[[Any], str]]:
    """`(decode, pick)`: a decoder that builds the one field, and the way to it."""
    kind: Any = str
    for key in reversed(keys):
        kind = msgspec.defstruct("Level", [("inner", kind)], rename={"inner": key}, gc=False)
    return msgspec.json.Decoder(kind).decode, operator.attrgetter(".".join(["inner"] * len(keys)))

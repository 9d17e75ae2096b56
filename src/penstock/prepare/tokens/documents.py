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
from typing import Any, cast

import msgspec
import numpy as np

from penstock._limits import require_memory_for
from penstock._naming import nearest
from penstock.errors import ConfigError
from penstock.formats._unrecognised import LINES_OF_A_LIST
from penstock.formats.jsonl.scan import believable, fault_of, maybe_deep

_REFUSALS = (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError)
_SEPARATOR = re.compile(r"(?<!\\)\.")
_MOST_KEYS = 16
_SHOWN = 8

KeyPath = tuple[str | int, ...]
"""The way to a value: keys of objects and indexes of lists."""

KINDS: dict[type, str] = {
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
        spans: of conversations, for each text the `(first, last + 1)` character of what is generated.
    """

    texts: list[bytes]
    places: list[int] | None
    faults: dict[int, str]
    lines: list[bytes]
    spans: list[list[tuple[int, int]]] | None = None


class Fault(str):
    """Why a value is not there: no text of the data."""

    __slots__ = ()


class TextReader:
    """Blocks of lines → the texts of a field, or of several, all of which must be there, joined.

    Memory: a few times a block; for a faulty line, what json builds.

    Args:
        fields: keys, or keys joined by dots; see `parse_field`.
        join: text between two.
        paths: ways to the texts, instead of fields.
    """

    def __init__(self, *fields: str, join: str = "", paths: tuple[KeyPath, ...] = ()) -> None:
        self._paths = paths or tuple(map(parse_field, fields))
        self._join = join
        self._extract = _extractor(self._paths, join)

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        extract = self._extract
        if believable(block, lines):
            try:
                texts = [extract(line).encode() for line in lines]
            except _REFUSALS:
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
                return self._extract(line).encode()
            except _REFUSALS:
                pass
        fault = json_fault(line)
        if fault is not None:
            return fault
        value = json.loads(line)
        texts: list[bytes] = []
        for path in self._paths:
            found = _text_at(value, path)
            if isinstance(found, str):
                return found
            texts.append(found)
        return self._join.encode().join(texts)


def json_fault(line: bytes) -> str | None:
    """Why a line is no JSON; None where it is."""
    fault = fault_of(line)
    return fault if fault is None or fault.startswith(("a ", "not ")) else f"not JSON: {fault}"


def encode_text(text: str, what: str) -> bytes | str:
    """A text as UTF-8, or why it can't be."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        return f"{what} has a lone surrogate, {text[error.start]!a}, which UTF-8 can't hold"


def read_lines(block: bytes, text_of: Callable[[bytes], bytes | str | None]) -> Texts:
    """Each line by itself: `text_of` gives its text, why there is none, or None for a line that is no document."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    texts: list[bytes] = []
    places: list[int] = []
    faults: dict[int, str] = {}
    for place, line in enumerate(lines):
        found = text_of(line)
        if isinstance(found, bytes):
            texts.append(found)
            places.append(place)
        elif found is not None:
            faults[place] = found
    return Texts(texts, places, faults, lines)


def _text_at(line: Any, path: KeyPath) -> bytes | str:
    """The text at the end of a path as UTF-8, or why there is none."""
    value = value_at(line, path)
    if isinstance(value, Fault):
        return str(value)
    if not isinstance(value, str):
        return f"field {_shown(path)!r} is {KINDS[type(value)]}, not text"
    return encode_text(value, f"field {_shown(path)!r}")


def value_at(line: Any, path: KeyPath) -> Any:
    """The value at the end of a path, or the `Fault` why there is none."""
    value: Any = line
    for depth, step in enumerate(path):
        kind: type[Any] = dict if isinstance(step, str) else list
        if not isinstance(value, kind):
            place = f"field {_shown(path[:depth])!r}" if depth else "the line"
            remedy = "" if depth or not isinstance(value, list) else f" ({LINES_OF_A_LIST})"
            return Fault(f"{place} is {KINDS[type(value)]}, not {KINDS[kind]}{remedy}")
        try:
            value = value[step]
        except LookupError:
            return Fault(f"no field {_shown(path)!r}{_instead(value, step)}")
    return value


def _instead(value: Any, step: str | int) -> str:
    """The fields that are there, and which of them may have been meant."""
    if not isinstance(value, dict) or not isinstance(step, str):
        return ""
    fields = cast(dict[Any, Any], value)
    names = [str(name) for name in fields]
    close = nearest(step, names)
    more = ", …" if len(names) > _SHOWN else ""
    listed = f" (fields: {', '.join(names[:_SHOWN])}{more})" if names else ""
    listed += "; use chat=True (--chat) to pack conversations" if isinstance(fields.get("messages"), list) else ""
    return listed + (f", did you mean {close!r}?" if close else "")


def _shown(path: KeyPath) -> str:
    return ".".join(str(step).replace(".", "\\.") if isinstance(step, str) else f"[{step}]" for step in path)


def parse_field(field: str) -> tuple[str, ...]:
    r"""`"meta.text"` → `("meta", "text")`. A dot inside a key is written `\.`.

    Raises:
        ConfigError: an empty key, or more than 16 of them.
    """
    keys = tuple(key.replace("\\.", ".") for key in _SEPARATOR.split(field))
    if not all(keys) or len(keys) > _MOST_KEYS:
        raise ConfigError(
            "not a field name",
            found=repr(field),
            expected="a key, or keys joined by dots, such as meta.text",
            hint=f"Did you mean {field[1:]!r}?" if len(keys) == 2 and field.startswith(".") else None,
        )
    return keys


@functools.lru_cache(maxsize=8)
def _extractor(paths: tuple[KeyPath, ...], join: str) -> Callable[[bytes], str]:
    """Line → text. A line is decoded once for each path, which is quick: all else in it is skipped."""
    extractors = [_one_extractor(path) for path in paths]
    if len(extractors) == 1:
        return extractors[0]
    return lambda line: join.join([extract(line) for extract in extractors])


def _one_extractor(path: KeyPath) -> Callable[[bytes], str]:
    keys = tuple(step for step in path if isinstance(step, str))
    if len(keys) == len(path):
        decode, pick = _typed_decoder(keys)

        def extract_text(line: bytes) -> str:
            require_memory_for(line)
            return pick(decode(line))

        return extract_text

    def extract(line: bytes) -> str:
        require_memory_for(line)
        value: Any = msgspec.json.decode(line)
        for step in path:
            if isinstance(value, str):  # whose characters have indexes too
                raise TypeError(value)
            value = value[step]
        if not isinstance(value, str):
            raise TypeError(value)
        return value

    return extract


def _typed_decoder(keys: tuple[str, ...]) -> tuple[Callable[[bytes], Any], Callable[[Any], str]]:
    """`(decode, pick)`: a decoder that builds the one field, and the way to it."""
    kind: Any = str
    for key in reversed(keys):
        kind = msgspec.defstruct("Level", [("inner", kind)], rename={"inner": key}, gc=False)
    return msgspec.json.Decoder(kind).decode, operator.attrgetter(".".join(["inner"] * len(keys)))

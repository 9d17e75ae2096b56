"""Texts of documents in lines of JSONL, read as strictly as by Python's json.

Valid lines are decoded by msgspec, which builds only the text field. Its result is used only if it can't be laxer than
json (see `penstock.formats.jsonl.scan`). Lines that it rejects are read again by json, for the text or the reason.
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
"""Path to a value: keys of objects and indexes of lists."""

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
    """Documents of a block of lines.

    Attributes:
        texts: UTF-8, of the valid lines in order.
        places: number of the line of each text in the block, from 0; None if all lines are valid.
        faults: number of a line in the block → why it has no text.
        lines: all lines.
        spans: for each text of a conversation, the `(first, last + 1)` characters that are generated.
    """

    texts: list[bytes]
    places: list[int] | None
    faults: dict[int, str]
    lines: list[bytes]
    spans: list[list[tuple[int, int]]] | None = None


class Fault(str):
    """Reason why a value doesn't exist, in place of the value."""

    __slots__ = ()


class TextReader:
    """Reads the text of a field, or of several joined fields, all of which must exist.

    `fields` are as for `parse_field`; `paths` are used instead of them. Memory: a few times a block; for an invalid
    line, its value.
    """

    def __init__(self, *fields: str, join: str = "", paths: tuple[KeyPath, ...] = ()) -> None:
        self._paths = paths or tuple(map(parse_field, fields))
        self._join = join
        self._extract = _extractor(self._paths, join)

    def read(self, block: bytes) -> Texts:
        lines, extract = split_lines(block), self._extract
        if believable(block, lines):
            try:
                texts = [extract(line).encode() for line in lines]
            except _REFUSALS:
                return read_lines(block, self._text_of)
            if not maybe_deep(lines, np.fromiter(map(len, lines), np.int64, len(lines))):
                return Texts(texts, None, {}, lines)
        return read_lines(block, self._text_of)

    def _text_of(self, line: bytes) -> bytes | str:
        if is_plain_json(line):
            try:
                return self._extract(line).encode()
            except _REFUSALS:
                pass
        fault = json_fault(line)
        if fault is not None:
            return fault
        row, texts = json.loads(line), list[bytes]()
        for path in self._paths:
            value = value_at(row, path)
            if isinstance(value, Fault):
                return str(value)
            if not isinstance(value, str):
                return f"field {_shown(path)!r} is {KINDS[type(value)]}, not text"
            text = encode_text(value, f"field {_shown(path)!r}")
            if isinstance(text, str):
                return text
            texts.append(text)
        return self._join.encode().join(texts)


def is_plain_json(line: bytes) -> bool:
    """Return whether msgspec reads a line as json does, or rejects it."""
    return believable(line, [line]) and not maybe_deep([line], np.array([len(line)]))


def json_fault(line: bytes) -> str | None:
    fault = fault_of(line)
    return fault if fault is None or fault.startswith(("a ", "not ")) else f"not JSON: {fault}"


def encode_text(text: str, what: str) -> bytes | str:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        return f"{what} has a lone surrogate, {text[error.start]!a}, which UTF-8 can't hold"


def split_lines(block: bytes) -> list[bytes]:
    """Return the lines of a block, whose last line break is optional."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def read_lines(block: bytes, text_of: Callable[[bytes], bytes | str | None]) -> Texts:
    """Read line by line. `text_of` returns the text, the reason for no text, or None if the line isn't a document."""
    texts, places, faults, lines = list[bytes](), list[int](), dict[int, str](), split_lines(block)
    for place, line in enumerate(lines):
        found = text_of(line)
        if isinstance(found, bytes):
            texts.append(found)
            places.append(place)
        elif found is not None:
            faults[place] = found
    return Texts(texts, places, faults, lines)


def value_at(line: Any, path: KeyPath) -> Any:
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
    """Return the existing fields, and which of them may have been meant."""
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
    r"""Return the keys of a field: `"meta.text"` → `("meta", "text")`. A dot inside a key is written `\.`.

    Raises:
        ConfigError: a key is empty, or there are more than 16.
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
    """Return a function from lines to texts. It decodes a line once per path, which skips all other values."""
    extractors = [_one_extractor(path) for path in paths]
    if len(extractors) == 1:
        return extractors[0]
    return lambda line: join.join([extract(line) for extract in extractors])


def _one_extractor(path: KeyPath) -> Callable[[bytes], str]:
    keys = tuple(step for step in path if isinstance(step, str))
    if len(keys) == len(path):
        kind: Any = str
        for key in reversed(keys):
            kind = msgspec.defstruct("Level", [("inner", kind)], rename={"inner": key}, gc=False)
        decode, pick = msgspec.json.Decoder(kind).decode, operator.attrgetter(".".join(["inner"] * len(keys)))

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

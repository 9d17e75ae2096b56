"""How long what a template makes would be, asked before it is made."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

MOST_CHARS = 1 << 26
"""Of a text that a template makes, and of all that a list of it holds, each as often as it is held."""
_MOST_NUMBER = 1_000_000
_MOST_BITS = 1 << 14
_MOST_BETWEEN = 64
_NUMBER = re.compile(r"\d+")
_WIDTH = re.compile(r"\d{7}")
_GIVEN_WIDTH = re.compile(r"%[-+ #0]*(?:\d*\.)?\*")
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "wordwrap"))
_ENCODINGS = frozenset(("utf-8", "utf8", "utf-16", "utf-32", "ascii", "latin-1"))
_HOLDING: Any = (dict, list, tuple)


class TooMuchError(Exception):
    """A template that takes more steps, or makes longer texts, than one may."""


def require_length(length: int) -> None:
    """That a template may make what is so long; raises `TooMuchError`."""
    if length > MOST_CHARS:
        raise TooMuchError("the template produces too much text")


def require_number(value: int) -> None:
    """That a template may count so far; raises `TooMuchError`."""
    if value.bit_length() > _MOST_BITS:
        raise TooMuchError("the template computes a number that is too large")


def require_range(length: int) -> None:
    """That a template may ask for a range of so many; raises `TooMuchError`."""
    if length > _MOST_NUMBER:
        raise TooMuchError("the template uses a range that is too long")


def require_narrow(text: str) -> None:
    """That no width in a format is too large; raises `TooMuchError`."""
    if _WIDTH.search(text):
        raise TooMuchError("the template pads text too far")


def weigh(value: Any) -> tuple[int, int]:
    """Characters of a value as a text, roughly, and how many values were looked at for that.

    A list that is held twice counts twice, and is looked at once.
    """
    if isinstance(value, str | bytes):
        return len(value), 0
    known, looked, waiting = dict[int, int](), 0, [value] if isinstance(value, _HOLDING) else []
    while waiting:
        one = waiting[-1]
        parts = [*one, *one.values()] if isinstance(one, dict) else one
        looked += len(parts)
        unknown = {id(part): part for part in parts if isinstance(part, _HOLDING) and id(part) not in known}
        if unknown and id(one) not in known:
            waiting += unknown.values()
            continue
        held = (len(part) + 2 if isinstance(part, str | bytes) else known.get(id(part), 2) for part in parts)
        known[id(one)] = min(sum(held) + 2, MOST_CHARS + 1)
        waiting.pop()
    return known.get(id(value), 1), looked


def require_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """That a filter, or a method, of the first of `args` gives nothing that is too long; raises `TooMuchError`."""
    given = [*args[1:], *kwargs.values()]
    text = args[0] if args and isinstance(args[0], str | bytes) else None
    numbers = any(isinstance(one, int) and abs(one) > _MOST_NUMBER for one in given)
    if name in ("to_bytes", "from_bytes") or (numbers and name in _PADDING):
        raise TooMuchError("the template pads text too far")
    if name in ("encode", "decode") and any(one not in _ENCODINGS for one in given[:1]):
        raise TooMuchError("the template uses an encoding that isn't allowed")
    if name == "sum" and any(isinstance(one, _HOLDING) for one in given):
        raise TooMuchError("the template sums lists")
    if name == "join":
        require_length(_joined(args, given))
    elif name in _GROWING and text is not None:
        require_length(_GROWING[name](text, given))


def require_operation(operator: str, left: Any, right: Any) -> None:
    """That `left operator right` is not too long; raises `TooMuchError`."""
    if operator == "*":
        for many, count in ((left, right), (right, left)):
            if isinstance(many, str | bytes | list | tuple) and isinstance(count, int):
                require_length(len(many) * max(0, count))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TooMuchError("the template computes a number that is too large")
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        require_length(len(left) + len(right))
    if operator == "%" and isinstance(left, str | bytes):
        require_length(_percent(left, list(right) if isinstance(right, tuple) else [right]))


def _joined(args: tuple[Any, ...], given: list[Any]) -> int:
    """Characters of what `join` makes of a list, which a method has behind its text."""
    parts = [one for one in (*args[:1], *given) if isinstance(one, _HOLDING)]
    between = sum(len(one) for one in (*args[:1], *given) if isinstance(one, str | bytes))
    return sum(weigh(one)[0] + len(one) * between for one in parts) or weigh(args[0])[0] * (1 + between)


def _largest(given: list[Any]) -> int:
    return max((weigh(one)[0] for one in given), default=0)


def _percent(text: Any, given: list[Any]) -> int:
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    require_narrow(shown)
    if _GIVEN_WIDTH.search(shown.replace("%%", "")):
        raise TooMuchError("the template pads text too far")
    widest = max(map(int, _NUMBER.findall(shown)), default=0)
    return len(shown) + shown.count("%") * max(widest, _largest(given))


def _fields(text: Any, given: list[Any]) -> int:
    require_narrow(text)
    length, largest = len(text), _largest(given)
    try:
        for _, _, spec, _ in string.Formatter().parse(text):
            if spec is not None:
                if "{" in spec:
                    raise TooMuchError("the template pads text too far")
                length += max(largest, *map(int, _NUMBER.findall(spec)), 0)
    except ValueError:  # it is no format, which whoever calls is told next
        pass
    return length


def _tabs(text: Any, given: list[Any]) -> int:
    width = next((one for one in given if isinstance(one, int)), 8)
    return len(text) + text.count("\t" if isinstance(text, str) else b"\t") * max(0, width)


def _replaced(text: Any, given: list[Any]) -> int:
    old, new = (*given, "", "")[:2]
    if not isinstance(new, str | bytes):
        return len(text)
    found = text.count(old) if isinstance(old, type(text)) and old else len(text) + 1
    return len(text) + found * len(new)


def _translated(text: Any, given: list[Any]) -> int:
    tables = [one for one in given if isinstance(one, dict)]
    return len(text) * max([1, *(len(one) for table in tables for one in table.values() if isinstance(one, str))])


def _indented(text: Any, given: list[Any]) -> int:
    width = next((one for one in given if isinstance(one, int | str)), 4)
    return len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width)


def _with_texts(text: Any, given: list[Any]) -> int:
    return len(text) * (1 + sum(len(one) for one in given if isinstance(one, str)))


_GROWING: dict[str, Callable[[Any, list[Any]], int]] = {
    "%": _percent,
    "format": _fields,
    "format_map": _fields,
    "expandtabs": _tabs,
    "replace": _replaced,
    "translate": _translated,
    "indent": _indented,
    "wordwrap": _with_texts,
    "urlize": _with_texts,
}


def require_between(*texts: Any) -> None:
    """That what a template wants between values is short; raises `TooMuchError`."""
    for one in texts:
        if one is not None and (one if isinstance(one, int) else len(one)) > _MOST_BETWEEN:
            raise TooMuchError("the template pads text too far")

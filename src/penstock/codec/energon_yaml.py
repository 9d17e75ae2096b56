"""Reader and writer of YAML as Energon uses it: its dialect of scalars, and the layout of its files.

| plain scalar | value |
|---|---|
| `null`, `~`, empty | None |
| `true`, `yes`, `false`, `no`, in any case | bool |
| with a `.` or an `e`, and a number for Python's `float` | float |
| a number for Python's `int` in base 10, such as `017` and `1_000` | int |
| everything else: `on`, `0x1f`, dates, `.inf`, `nan` | str |

Quoted scalars are str, and so are map keys. Tags are ignored, so no objects are constructed. Anchors are ignored, and
aliases and `<<` are plain text. The last one of equal keys wins. Checked against Energon 7.4.1 (rapidyaml 0.15.2),
which
fails on empty values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from penstock._limits import MOST_NESTING
from penstock.errors import FormatError

_CONSTANTS: dict[str, Any] = {
    "": None,
    "null": None,
    "~": None,
    "true": True,
    "yes": True,
    "false": False,
    "no": False,
}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(data: bytes | str, path: str) -> Any:
    """Return the value of a YAML document: dicts, lists, str, int, float, bool and None; None if empty.

    Raises:
        FormatError: the data isn't YAML, has several documents, or is nested too deep. The message has the line.
    """
    # A text block at the very end counts as terminated by a newline.
    events = _events(data + "\n" if isinstance(data, str) else data + b"\n", path)
    for event in events:
        if not isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            break
    else:
        return None
    if isinstance(event, yaml.StreamEndEvent):
        return None
    value = _value(event, events, path, 0)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            raise _fault(path, event, "a second document", "one document")
    return value


def dump(value: Any, *, sort_keys: bool = False) -> str:
    """Return the text that Energon writes for a value.

    Args:
        value: plain data.
        sort_keys: as Energon up to 6.x does.
    """
    return yaml.safe_dump(_plain(value), sort_keys=sort_keys)


def scalar(text: str) -> Any:
    lower = text.lower()
    if lower in _CONSTANTS:
        return _CONSTANTS[lower]
    try:
        return float(text) if "." in lower or "e" in lower else int(text)
    except ValueError:
        return text


def _events(data: bytes | str, path: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(data, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise FormatError(f"not valid YAML{place}", path=path, found=error.problem or error.context) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError("not valid YAML", path=path, found=" ".join(str(error).split())) from None


def _value(event: Any, events: Iterator[Any], path: str, depth: int) -> Any:
    """Return the value that begins with `event`; consumes its further events."""
    if isinstance(event, yaml.ScalarEvent):
        return scalar(event.value) if not event.style else event.value
    if isinstance(event, yaml.AliasEvent):
        return f"*{event.anchor}"
    if depth >= MOST_NESTING:
        raise _fault(path, event, "deeper nesting", f"at most {MOST_NESTING} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            items.append(_value(inner, events, path, depth + 1))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(inner := next(events), yaml.MappingEndEvent):
        if isinstance(inner, yaml.AliasEvent):
            key = f"*{inner.anchor}"
        elif isinstance(inner, yaml.ScalarEvent):
            key = inner.value
        else:
            raise _fault(path, inner, "a list or mapping as a key", "text")
        mapping[key] = _value(next(events), events, path, depth + 1)
    return mapping


def _fault(path: str, event: Any, found: str, expected: str) -> FormatError:
    line = event.start_mark.line + 1
    return FormatError(f"the YAML is not a plain document in line {line}", path=path, found=found, expected=expected)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value

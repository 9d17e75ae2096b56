"""JSON values as trees of bounded size: folded on pages, indented in terminals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from penstock._printable import recordable
from penstock.view.facts.bounds import MOST_NAME_CHARACTERS, Bounds

Kind = Literal["object", "array", "string", "number", "bool", "null", "other"]
_MOST_DIGITS = 60
_OF_STRING = 500
_SHORT: tuple[Kind, ...] = ("number", "bool", "null")
_MOST_ROW = 100


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A JSON value.

    Attributes:
        name: key in an object; None in an array.
        kind: type of the value; `"other"` isn't JSON: `text` has its type and its beginning.
        text: content of a string, without quotes; literal of a number, `true`, `null` and others.
        children: shown children of an object or array.
        of: number of all children, or of characters in a string.
    """

    name: str | None
    kind: Kind
    text: str = ""
    children: tuple[JsonNode, ...] = ()
    of: int = 0

    @property
    def more(self) -> int:
        """Number of children, or characters of a string, that aren't shown."""
        if self.kind in ("object", "array"):
            return self.of - len(self.children)
        return max(0, self.of - len(self.text)) if self.kind == "string" else 0


def json_tree(value: Any, bounds: Bounds) -> JsonNode:
    """Return the tree of a value, of at most `bounds.nodes` nodes; the first ones of each level."""
    return _node(None, value, [bounds.nodes], bounds.deep)


def json_lines(node: JsonNode, indent: str = "") -> Iterator[str]:
    """Yield the tree as indented lines, with `…` for omitted parts; strings in quotes."""
    name = "" if node.name is None else f"{_quoted(node.name)}: "
    if node.kind not in ("object", "array"):
        more = f" … {node.more:,} more characters" if node.more else ""
        yield f"{indent}{name}{_quoted(node.text) if node.kind == 'string' else node.text}{more}"
        return
    begin, end = "{}" if node.kind == "object" else "[]"
    if not node.children:
        yield f"{indent}{name}{begin}{f' … {node.of:,} more ' if node.of else ''}{end}"
        return
    if node.kind == "array" and all(child.kind in _SHORT for child in node.children):
        row = ", ".join(child.text for child in node.children)
        if len(row) <= _MOST_ROW:
            yield f"{indent}{name}[{row}{f', … {node.more:,} more' if node.more else ''}]"
            return
    yield f"{indent}{name}{begin}"
    for child in node.children:
        yield from json_lines(child, indent + "  ")
    if node.more:
        yield f"{indent}  … {node.more:,} more"
    yield indent + end


def _node(name: str | None, value: Any, left: list[int], deep: int) -> JsonNode:
    left[0] -= 1
    if isinstance(value, str):
        return JsonNode(name, "string", recordable(value[:_OF_STRING]), of=len(value))
    if value is None or isinstance(value, bool):
        return JsonNode(name, "null" if value is None else "bool", {None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int | float):
        return JsonNode(name, "number", _number(value))
    if isinstance(value, Mapping):
        pairs = ((_key(key), one) for key, one in value.items())
        return JsonNode(name, "object", children=_children(pairs, left, deep), of=len(value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return JsonNode(name, "array", children=_children(((None, one) for one in value), left, deep), of=len(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return JsonNode(name, "other", f"{len(value):,} bytes")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if not value.shape:
            return _node(name, value.item(), left, deep)
        return JsonNode(name, "other", f"{value.dtype}{list(value.shape)}")
    return JsonNode(name, "other", f"{type(value).__name__} {recordable(str(value)[:_OF_STRING])}")


def _children(pairs: Iterator[tuple[str | None, Any]], left: list[int], deep: int) -> tuple[JsonNode, ...]:
    found: list[JsonNode] = []
    while deep > 0 and left[0] > 0 and (pair := next(pairs, None)) is not None:
        found.append(_node(*pair, left, deep - 1))
    return tuple(found)


def _key(key: Any) -> str:
    return recordable("".join(islice(str(key), MOST_NAME_CHARACTERS)))


def _number(value: float) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * _MOST_DIGITS:  # slow to print
        return f"a number of {value.bit_length():,} bits"
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'

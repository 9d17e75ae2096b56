"""Text of `print(source)` and `print(stream)`: a tree that fits on a screen, without reading data."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock._secrets import redact

T = TypeVar("T")

FACES = {"notebook": "penstock.view.notebook"}
"""Modules that draw in notebooks, by name, so that no layer imports one above it."""

MOST_CHILDREN = 16
MOST_LINES = 24


@runtime_checkable
class _SaysSummary(Protocol):
    """Object with a one-line summary that reads no data."""

    def summary(self) -> str:
        """Return a line such as `Shuffle  seed=7 mode=global lanes=1`."""
        ...


@runtime_checkable
class _NotesChildren(Protocol):
    """Node with notes on its children: shares, counts, lengths."""

    def child_notes(self) -> Mapping[str, str]:
        """Return name → the note after the name in the tree."""
        ...


def tree(self: Any) -> str:
    """Return the text of `print(source)`.

    It has one line, and below it one line per child, as deep as fits on a screen. Use it as `__str__` of sources and
    streams that have `summary()`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.formats.kit import tree
        >>> print(tree(ps.Shuffle(ps.open("corpus.pbin"), seed=0)))
        Shuffle  mode=global seed=0 lanes=1 samples=6
          source: pbin  path=...corpus.pbin tokens=45 dtype=uint16
    """
    whole = list(_lines(self, "", 0, 1 << 30))
    most = max((line.index(line.lstrip()) for line in whole), default=0) // 2
    for depth in range(most, 0, -1):
        lines = list(_lines(self, "", 0, depth))
        if len(lines) <= MOST_LINES:
            return "\n".join(lines)
    return "\n".join(_lines(self, "", 0, 1))


def brief(self: _SaysSummary) -> str:
    """Return `<summary>`, the `__repr__` of objects with a one-line summary."""
    return f"<{self.summary()}>"


def html(self: Any) -> str:
    """Return the notebook display of sources and streams, their `_repr_html_`; see `penstock.view.notebook`."""
    return importlib.import_module(FACES["notebook"]).html_of(self)


class ShownDict(dict[str, Any]):
    """Dict with a notebook display; otherwise a plain dict."""

    __slots__ = ()
    _repr_html_ = html


class ShownList(list[T]):
    """List with a notebook display; otherwise a plain list."""

    __slots__ = ()
    _repr_html_ = html


def line(name: str, params: Mapping[str, Any], fingerprint: str | None = None) -> str:
    """Return a one-line summary: name, parameters that aren't None, and a short fingerprint if known.

    Args:
        name: name of the class.
        params: name → value.
        fingerprint: fingerprint, if already computed.

    Examples:
        >>> from penstock.formats.kit import line
        >>> line("numbers", {"path": "numbers.dat", "samples": 3, "width": None})
        'numbers  path=numbers.dat samples=3'
    """
    # A seed is a name rather than a number: shown as in code.
    values = {key: value if key == "seed" else _value(value) for key, value in params.items() if value is not None}
    words = [name, " ".join(f"{key}={value}" for key, value in values.items())]
    if fingerprint is not None:
        words.append(f"[{fingerprint[:8]}]")
    return "  ".join(word for word in words if word)


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else redact(str(value))


def _lines(node: Any, label: str, depth: int, most: int) -> Iterator[str]:
    indent = "  " * depth
    children: Mapping[str, Any] = node.children() if hasattr(type(node), "children") else {}
    cut = " …" if children and depth == most else ""
    yield f"{indent}{label}{node.summary() if isinstance(node, _SaysSummary) else type(node).__name__}{cut}"
    if cut:
        return
    notes = node.child_notes() if isinstance(node, _NotesChildren) else {}
    for place, (name, child) in enumerate(children.items()):
        if place == MOST_CHILDREN:
            yield f"{indent}  … and {len(children) - place:,} more"
            return
        note = f" ({notes[name]})" if name in notes else ""
        yield from _lines(child, f"{name}{note}: ", depth + 1, most)

"""HTML from plain values: everything except markup is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from penstock._printable import printable_lines

_VOID = frozenset(("br", "hr", "img", "meta", "link", "rect", "line", "path", "polygon", "polyline", "circle"))


class Markup(str):
    __slots__ = ()

    def __html__(self) -> Markup:
        """Let templates insert it as it is."""
        return self


Child: TypeAlias = str | int | float | Iterable["Child"] | None
"""Text, which is escaped; markup; several of them; or nothing."""


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Return an element.

    Args:
        name: name of the element.
        children: content of the element.
        attributes: a trailing underscore is dropped (`class_`), others are dashes; None and False omit an attribute.
    """
    text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{quoted(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{text}>" if name in ("br", "hr", "img", "meta", "link") else f"<{name}{text}/>")
    return Markup(f"<{name}{text}>{joined(children)}</{name}>")


def several(*children: Child) -> Markup:
    return joined(children)


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(map(_one, children)))


def quoted(text: str) -> str:
    """Return text for an attribute or an element; characters that change or end its direction are spelled out."""
    return escape(printable_lines(text), quote=True)


def _one(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return escape(printable_lines(str(child)), quote=False)
    return joined(child)

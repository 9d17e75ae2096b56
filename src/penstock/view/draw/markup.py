"""HTML out of plain values: everything is escaped that is not markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from penstock._printable import printable_lines

_VOID = frozenset(("br", "hr", "img", "meta", "link", "rect", "line", "path", "polygon", "polyline", "circle"))


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


Child: TypeAlias = str | int | float | Iterable["Child"] | None
"""Text, which is escaped; markup; several of them; or nothing."""


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element.

    Args:
        name: of it.
        children: in it.
        attributes: a trailing underscore is dropped (`class_`), others are dashes; None and False leave one out.
    """
    told = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{quoted(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{told}>" if name in ("br", "hr", "img", "meta", "link") else f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Children one after another."""
    return Markup("".join(map(_one, children)))


def quoted(text: str) -> str:
    """Text as it stands in an element or an attribute; what would turn its direction or end it is spelt out."""
    return escape(printable_lines(text), quote=True)


def _one(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return quoted(str(child))
    return joined(child)

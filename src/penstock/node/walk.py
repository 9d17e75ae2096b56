"""Walks over the tree of a source or stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

UNNAMED = ("source", "stream")
"""Names of only children, which aren't part of a path."""


def children_of(node: Any) -> dict[str, Any]:
    """Return the children of a node by name; none for objects that aren't nodes."""
    return dict(node.children()) if hasattr(type(node), "children") else {}


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and everything below it, parents first."""
    yield node
    for child in children_of(node).values():
        yield from walk(child)


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and node of each leaf below a node: names of the branches, apart from `source` and `stream`."""
    children = children_of(node)
    if not children:
        yield path, node
    for name, child in children.items():
        yield from leaves(child, path if name in UNNAMED else (*path, name))


def descend(node: Any, path: Sequence[str], has_arrived: Callable[[Any], bool]) -> Any:
    """Follow a path, and only children, to a node for which `has_arrived` is true, if it exists."""
    names = list(path)
    while names or not has_arrived(node):
        children = children_of(node)
        if names and names[0] in children:
            node = children[names.pop(0)]
        elif len(children) == 1:
            [node] = children.values()
        else:
            return None
    return node

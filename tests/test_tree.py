"""What printing shows."""

from __future__ import annotations

from typing import Any

from penstock._tree import MOST_CHILDREN, line, tree


class Node:
    def __init__(self, name: str, **below: Any) -> None:
        self.name = name
        self.below = below

    def summary(self) -> str:
        return self.name

    def children(self) -> dict[str, Any]:
        return self.below


class Silent:
    """Has neither summary nor children."""


def test_children_are_indented_and_named() -> None:
    node = Node("top", a=Node("left", source=Silent()), b=Node("right"))
    assert tree(node).splitlines() == ["top", "  a: left", "    source: Silent", "  b: right"]


def test_many_children_are_cut() -> None:
    lines = tree(Node("top", **{f"c{i}": Node("x") for i in range(1200)})).splitlines()
    assert len(lines) == MOST_CHILDREN + 2
    assert lines[-1] == f"  … and {1200 - MOST_CHILDREN:,} more"


def test_a_line() -> None:
    assert line("Chunk", {"length": 2048, "labels": None, "flag": True}) == "Chunk  length=2,048 flag=True"
    assert line("Chunk", {}, "0123456789abcdef") == "Chunk  [01234567]"

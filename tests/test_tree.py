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


def test_notes_stand_beside_names() -> None:
    class Shares(Node):
        def child_notes(self) -> dict[str, str]:
            return {"a": "1 of 4"}

    assert tree(Shares("top", a=Node("x"), b=Node("y"))).splitlines() == ["top", "  a (1 of 4): x", "  b: y"]


def test_a_tree_is_as_deep_as_a_screen() -> None:
    def chain(length: int) -> Node:
        return Node("link", below=chain(length - 1)) if length else Node("end")

    assert tree(Node("top", a=chain(20))).splitlines()[-1].strip() == "below: end"
    wide = tree(Node("top", **{f"c{i}": chain(3) for i in range(7)})).splitlines()
    assert len(wide) == 1 + 7 * 3
    assert wide[3] == "      below: link …"
    assert len(tree(Node("top", **{f"c{i}": chain(9) for i in range(40)})).splitlines()) == MOST_CHILDREN + 2


def test_seeds_have_no_commas() -> None:
    assert line("Shuffle", {"seed": 12345, "samples": 12345}) == "Shuffle  seed=12345 samples=12,345"


def test_a_line() -> None:
    assert line("Chunk", {"length": 2048, "labels": None, "flag": True}) == "Chunk  length=2,048 flag=True"
    assert line("Chunk", {}, "0123456789abcdef") == "Chunk  [01234567]"

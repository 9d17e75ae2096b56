"""One split of a metadataset as data: leaves, joins and mixes, with all inherited values resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from penstock.mix.subset import Bound

MixKind: TypeAlias = Literal["blend", "blend_epochized"]

Ranges: TypeAlias = "tuple[tuple[Bound, Bound], ...]"
"""Subsets, the innermost first."""

Multiplier: TypeAlias = "int | None"
"""Epochs shuffled together; -1 draws with replacement, None doesn't shuffle."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One dataset.

    Attributes:
        path: path of the dataset, absolute or a URL.
        split: its split; a JSONL file has none.
        ranges: subsets of all levels.
        aux: name → (path, whether it is a directory of files).
        dataset_config: file in `.nv-meta` that replaces `dataset.yaml`.
        split_config: file in `.nv-meta` that replaces `split.yaml`.
        multiplier: product over all levels.
    """

    path: str
    split: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ranges: Ranges = ()
    aux: Mapping[str, tuple[str, bool]] = field(default_factory=dict[str, tuple[str, bool]])
    dataset_config: str | None = None
    split_config: str | None = None
    multiplier: Multiplier = 1


@dataclass(frozen=True, slots=True)
class Joined:
    """Several datasets, joined by key.

    Attributes:
        members: datasets by name; in a list "0", "1", …
        how: rule of each further member.
        joiner: `module.name` of the joiner; for a class `module.Class.from_joined`.
        ranges: subsets of the joined rows.
        multiplier: as in `Leaf`.
    """

    members: Mapping[str, Leaf]
    named: bool
    how: Mapping[str, str]
    joiner: str
    subflavors: Mapping[str, Any]
    ranges: Ranges
    multiplier: Multiplier
    path: str


@dataclass(frozen=True, slots=True)
class Mixed:
    """Several nodes with weights or repetitions.

    Attributes:
        kind: `"blend"` (weights) or `"blend_epochized"` (repetitions).
        children: (name, weight or repetitions, node).
    """

    kind: MixKind
    children: tuple[tuple[str, int | float, Node], ...]
    path: str


Node: TypeAlias = "Leaf | Joined | Mixed"


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the datasets below a node, in order, including members of joins."""
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Joined):
        yield from node.members.values()
    else:
        for _, _, child in node.children:
            yield from leaves(child)


def units(node: Node, prefix: str = "") -> Iterator[tuple[str, Leaf | Joined, tuple[int | float, ...]]]:
    """Yield the leaves and joins below a node by name, with the weights or repetitions above each."""
    if not isinstance(node, Mixed):
        yield prefix, node, ()
        return
    for name, number, child in node.children:
        for place, unit, numbers in units(child, f"{prefix}/{name}" if prefix else name):
            yield place, unit, (number, *numbers)

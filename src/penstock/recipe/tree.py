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
"""Epochs shuffled together; -1 draws with replacement, None does not shuffle."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One dataset.

    Attributes:
        path: of the dataset, absolute or a URL.
        split: its split; a JSONL has none.
        subflavors: of all levels above it, merged.
        ranges: subsets of all levels.
        aux: name → (path, whether it is a folder of files).
        dataset_config: file in `.nv-meta` in the place of `dataset.yaml`.
        split_config: file in `.nv-meta` in the place of `split.yaml`.
        multiplier: of all levels, multiplied.
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
        members: by name; a list's are named "0", "1", …
        named: whether the names were given.
        how: rule of each further member.
        joiner: `module.name` of what makes the sample; of a class `module.Class.from_joined`.
        subflavors: of the joined samples.
        ranges: subsets of the joined rows.
        multiplier: as of a leaf.
        path: of the file that says so.
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
    """Several nodes by weight, or each a number of times.

    Attributes:
        kind: `"blend"` (weights) or `"blend_epochized"` (repetitions).
        children: (name, weight or repetitions, node).
        path: of the file that says so.
    """

    kind: MixKind
    children: tuple[tuple[str, int | float, Node], ...]
    path: str


Node: TypeAlias = "Leaf | Joined | Mixed"


def leaves(node: Node) -> Iterator[Leaf]:
    """The datasets below a node, in order; the members of a join, too."""
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Joined):
        yield from node.members.values()
    else:
        for _, _, child in node.children:
            yield from leaves(child)


def units(node: Node, prefix: str = "") -> Iterator[tuple[str, Leaf | Joined, tuple[int | float, ...]]]:
    """The leaves and joins below a node by name, with the weights or repetitions above each."""
    if not isinstance(node, Mixed):
        yield prefix, node, ()
        return
    for name, number, child in node.children:
        for place, unit, numbers in units(child, f"{prefix}/{name}" if prefix else name):
            yield place, unit, (number, *numbers)

"""Construction of the sources and streams that a metadataset describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias, cast

from penstock._naming import naming
from penstock._secrets import logger
from penstock.abc import Source, Stream
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.mix import Blend, Epochs, Join, WithAux, subset
from penstock.mix.shares import exactly
from penstock.order import Sequential, Shuffle
from penstock.recipe.code import Code, joiner_of
from penstock.recipe.flavored import Flavored
from penstock.recipe.leaf import is_crude, open_aux, open_leaf, said_part
from penstock.recipe.tree import Joined, Leaf, Mixed, Multiplier, Node, units
from penstock.types import OpenOptions, Sample

_log = logger("penstock.recipe")

Mode: TypeAlias = Literal["train", "val"]

Each: TypeAlias = Callable[[Source[Sample], "Leaf | Joined"], Source[Any]]
"""Function applied to each dataset or join, such as cooking by its subflavors."""

WITH_REPLACEMENT = 1 << 16
"""Epochs shuffled together to approximate drawing with replacement."""


class Builder:
    def __init__(
        self, code: Code, options: OpenOptions, lanes: int, each: Each | None, multiplier: Multiplier = 1
    ) -> None:
        self._code = code
        self._options = options
        self._lanes = lanes
        self._each = each
        self._multiplier: Multiplier = multiplier
        self._opened: dict[tuple[str | None, ...], Source[Sample]] = {}

    def build(self, node: Node, mode: Mode, seed: int | None) -> Source[Sample] | Stream[Sample]:
        """Return a source of one epoch, or a stream for weights in training."""
        if not isinstance(node, Mixed):
            return self._unit(node)
        if mode == "val":
            return self._in_turn(node)
        if node.kind == "blend_epochized":
            return self._repeated(node)
        return self._blend(node, seed)

    def _in_turn(self, node: Mixed) -> Source[Sample]:
        """Return every sample once, one dataset after another; weights and repetitions don't count."""
        own = {name: (self._unit(unit), 1) for name, unit, _ in units(node)}
        return cast(Source[Sample], Epochs(own))

    def _repeated(self, node: Mixed) -> Source[Sample]:
        """Return a mix with repetitions multiplied down to its datasets: part of a mix is that part of each."""
        own: dict[str, tuple[Source[Sample], Fraction | int | float]] = {}
        for name, unit, numbers in units(node):
            if all(numbers):
                own[name] = (self._unit(unit), _product(numbers))
        if not own:
            raise ConfigError("the mix is empty: all repetitions are 0", path=node.path)
        return cast(Source[Sample], Epochs(own))

    def _blend(self, node: Mixed, seed: int | None) -> Blend:
        children = {name: child for name, weight, child in node.children if weight}
        weights = {name: weight for name, weight, _ in node.children if weight}
        if not children:
            raise ConfigError("the blend is empty: all weights are 0", path=node.path)
        streams = {name: self._stream(name, child) for name, child in children.items()}
        return Blend(streams, weights, seed, lanes=self._lanes)

    def _stream(self, name: str, node: Node) -> Stream[Sample]:
        """Return a child of a blend; its seed comes from the blend."""
        what = f"the child {name!r}"
        if isinstance(node, Mixed):
            with naming(what):
                return self._blend(node, None)
        unit = self._unit(node)
        with naming(what, unit):
            return shuffled(unit, multiplied(self._multiplier, node.multiplier), None, self._lanes)

    def _unit(self, node: Leaf | Joined) -> Source[Sample]:
        source = self._join(node) if isinstance(node, Joined) else self._leaf(node)
        return source if self._each is None else self._each(source, node)

    def _open(self, node: Leaf) -> Source[Sample]:
        key = (node.path, node.split, node.dataset_config, node.split_config)
        if key not in self._opened:
            self._opened[key] = open_leaf(
                node.path,
                node.split,
                dataset_config=node.dataset_config,
                split_config=node.split_config,
                sample_types=self._code.types,
                options=self._options,
            )
        return self._opened[key]

    def _leaf(self, node: Leaf) -> Source[Sample]:
        source = self._open(node)
        if node.aux and not is_crude(source):
            raise ConfigError(
                "auxiliary data only works with crude datasets: these samples are already typed",
                path=node.path,
                found=", ".join(node.aux),
            )
        said = said_part(source)
        if said is not None and node.ranges:
            what = "%s: its dataset.yaml sets a subset. As in Energon, it overrides the subset of the metadataset"
            _log.warning(what, node.path)
        taken = _flavored(_part(source, node) if said is None else said, node.subflavors)
        stores: dict[str, Any] = {
            name: open_aux(*place, follow_links=self._options.follow_links) for name, place in node.aux.items()
        }
        return WithAux(taken, **stores) if stores else taken

    def _join(self, node: Joined) -> Source[Sample]:
        members = {name: self._leaf(member) for name, member in node.members.items()}
        for member in node.members.values():
            if said_part(self._open(member)) is not None:
                hint = "Set it on the join in the metadataset, and remove it there"
                raise Unsupported("a member of a join can't have a subset", path=member.path, found="subset", hint=hint)
        joiner = joiner_of(node.joiner, self._code, node.path)
        given: Any = members if node.named else list(members.values())
        how: Any = node.how if node.named else list(node.how.values())
        try:
            joined = Join(given, how=how, joiner=joiner, name=node.joiner)
        except PenstockError as error:
            error.path = error.path or node.path
            raise
        return _flavored(_part(joined, node), node.subflavors)


def _part(source: Source[Any], node: Leaf | Joined) -> Source[Any]:
    for bounds in node.ranges:
        try:
            source = subset(source, bounds)
        except PenstockError as error:
            error.path = error.path or node.path
            raise
    return source


def _flavored(source: Source[Sample], subflavors: Mapping[str, Any]) -> Source[Sample]:
    return Flavored(source, subflavors) if subflavors else source


def multiplied(outer: Multiplier, inner: Multiplier) -> Multiplier:
    """Return the product of two values of `shuffle_over_epochs_multiplier`: no shuffling wins, then replacement."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def shuffled(source: Source[Sample], multiplier: Multiplier, seed: int | None, lanes: int) -> Stream[Sample]:
    """Return that many epochs of a source shuffled together; with -1 nearly with replacement, with None unshuffled."""
    if multiplier is None:
        return Sequential(source, lanes)
    times = WITH_REPLACEMENT if multiplier == -1 else multiplier
    copies = source if times == 1 else cast(Source[Sample], Epochs({"copies": (source, times)}))
    return Shuffle(copies, seed, lanes=lanes)


def _product(numbers: tuple[int | float, ...]) -> Fraction | int | float:
    if len(numbers) == 1:
        return numbers[0]
    product = Fraction(1)
    for number in numbers:
        product *= exactly("number of repetitions", number)
    return int(product) if product.denominator == 1 else product

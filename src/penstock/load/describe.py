"""Description of the inputs of a stream, child by child, to detect from a state that the stream has changed.

A stream is a tree. A chain of single children counts as one node. A child is named by the branches above it: the only
child of `Shuffle(Chunk(file))` is its file, and `Blend({"books": …, "web": …})` has the children `books` and `web`,
even
if the blend is wrapped. Digests cover content and parameters, never paths: a copy in another location is the same
stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock._digest import digest
from penstock._kinds import FormerRule, HasFormerRule, HasHorizon, RuleChange

_DIGEST_CHARS = 12
# An entry of the JSON object is `"key": "digest", `: the key, 8 characters and the digest, and `, ` and a number of up
# to 14 digits for its reads: 64 in all.
_KEY_CHARS = 64 - 8 - _DIGEST_CHARS - 2 - 14


_PIXELS = RuleChange(
    name="pixels",
    text='decode="uint8" now scales 16-bit images and applies EXIF orientation',
    old="16-bit values clipped, EXIF ignored",
    new="16-bit values scaled, EXIF applied",
    keep='decode="uint8-0.2" keeps the former pixels',
    changes_samples=lambda: True,  # otherwise all images would have to be decoded
)


@dataclass(frozen=True, slots=True)
class Description:
    """Inputs that the positions `[0, stop)` of a stream depend on.

    Attributes:
        order: names of the arithmetic that maps positions to indices, such as `"feistel-1"`.
        recipe: short digest of the parameters above the named children.
        children: place in the tree → short digest of everything below it, except other named children.
        reads: place in the tree → the child's own positions read before `stop`, if known.
        ends: place in the tree → its source; ignored in comparisons.
        changes: rules of the stream that were different in version 0.2.0; only with `former=True`.
    """

    order: str
    recipe: str
    children: Mapping[str, str]
    reads: Mapping[str, int]
    ends: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    changes: tuple[RuleChange, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class _Draft:
    versions: set[str]
    children: dict[str, str]
    reads: dict[str, int]
    ends: dict[str, Any]
    former: bool
    changes: list[RuleChange]


@dataclass(frozen=True, slots=True)
class _Chain:
    """Path from a node down to the next branch or leaf: its own parameters, and the children below."""

    parameters: list[Any]
    name: str
    end: Any
    branches: dict[str, tuple[Any, int | None]]


def describe(data: Any, stop: int, *, former: bool = False) -> Description:
    """Describe a stream or source as far as its positions `[0, stop)` depend on it.

    Reads fingerprints: up to 64 reads per file the first time.

    Args:
        data: stream or source.
        stop: end of the positions.
        former: describe it by the rules of version 0.2.0, and list the rules that changed since.
    """
    draft = _Draft(set(), {}, {}, {}, former, [])
    # A state of no samples still identifies its stream.
    chain = _follow(data, "source", max(stop, 1), draft)
    if chain.branches:
        _add_branches(chain, "", draft)
    else:
        draft.children[key_of(chain.name)] = short([[], _identity(chain.end, draft)])
        draft.ends[key_of(chain.name)] = chain.end
        draft.reads[key_of(chain.name)] = stop
    versions = "+".join(sorted(draft.versions))
    return Description(versions, short(chain.parameters), draft.children, draft.reads, draft.ends, tuple(draft.changes))


def short(value: Any) -> str:
    """Return 12 hex digits of the digest of plain JSON."""
    return digest(value)[:_DIGEST_CHARS]


def _add_branches(chain: _Chain, prefix: str, draft: _Draft) -> None:
    for name, (node, stop) in chain.branches.items():
        place = f"{prefix}{name}"
        key = key_of(place)
        if stop is not None:
            draft.reads[key] = stop
        below = _follow(node, name, stop, draft)
        if below.branches:
            draft.children[key] = short(below.parameters)
            _add_branches(below, f"{place}/", draft)
        else:
            draft.children[key] = short([below.parameters, _identity(below.end, draft)])
            draft.ends[key] = below.end


def _follow(node: Any, name: str, stop: int | None, draft: _Draft) -> _Chain:
    parameters: list[Any] = []
    while True:
        own, below = _split(node, stop)
        if own is None or not below:
            return _Chain(parameters, name, node, {})
        if draft.former and (rule := _former_rule(node)) is not None:
            own = {name: value for name, value in {**own, **rule.parameters}.items() if name not in rule.absent}
            draft.changes.extend(() if rule.change is None else [rule.change])
        draft.versions.update(_versions(own))
        if own:
            parameters.append(own)
        single = len(below) == 1 and (not own or len(node.children()) == 1)
        if not single:
            return _Chain(parameters, name, node, below)
        [(name, (node, stop))] = below.items()


def _split(node: Any, stop: int | None) -> tuple[Any, dict[str, tuple[Any, int | None]]]:
    """Return a node's own parameters and its children, each with the end of its reads; None if inseparable."""
    children: Mapping[str, Any] = node.children()
    if stop is not None and isinstance(node, HasHorizon):
        own, reached = node.horizon(stop)
        return own, {name: (children[name], max(1, count)) for name, count in reached.items()}
    recipes = {_text(child.recipe()) for child in children.values()}
    own, found = _without(node.recipe(), recipes)
    if found < len(children):
        return None, {}
    # It is unknown which positions of its children such a node has read: all of each child counts.
    return own if isinstance(own, dict) else {}, {name: (child, None) for name, child in children.items()}


def _identity(source: Any, draft: _Draft) -> str:
    """Return the identity of a source in a state: its fingerprint, plus the pixel rule if it decodes to arrays."""
    if not _decodes_upright(source.recipe()):
        return source.fingerprint
    if draft.former:
        draft.changes.append(_PIXELS)
        return source.fingerprint
    return digest("upright pixels", source.fingerprint)


def _decodes_upright(recipe: Any) -> bool:
    """Return whether a recipe opens a dataset with `decode="uint8"`."""
    if isinstance(recipe, Mapping):
        return recipe.get("decode") == "uint8" or any(map(_decodes_upright, recipe.values()))
    return isinstance(recipe, (list, tuple)) and any(map(_decodes_upright, recipe))


def _former_rule(node: Any) -> FormerRule | None:
    return node.former_rule() if isinstance(node, HasFormerRule) else None


def _without(value: Any, recipes: set[str]) -> tuple[Any, int]:
    """Return `value` without the given recipes, and the number of removed ones."""
    if isinstance(value, dict):
        if _text(value) in recipes:
            return "child", 1
        pairs = {str(key): _without(item, recipes) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(found for _, found in pairs.values())
    if isinstance(value, (list, tuple)):
        items = [_without(item, recipes) for item in value]
        return [item for item, _ in items], sum(found for _, found in items)
    return value, 0


def _text(recipe: Any) -> str:
    return json.dumps(recipe, sort_keys=True)


def _versions(own: Mapping[str, Any]) -> set[str]:
    """Return the names of the arithmetic in a node's own parameters."""
    version = own.get("version")
    return {version} if isinstance(version, str) else set()


def key_of(place: str) -> str:
    """Return the key of a place in a state: the place itself, or its start and a digest if it is long."""
    # JSON writes quotes and non-ASCII characters as several characters.
    plain = "".join(char for char in place if char.isascii() and char.isprintable() and char not in '"\\')
    if plain == place and len(place) <= _KEY_CHARS:
        return place
    return f"{plain[: _KEY_CHARS - 9]}~{digest(place)[:8]}"

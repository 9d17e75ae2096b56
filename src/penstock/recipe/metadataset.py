"""Energon's metadatasets: YAML files that mix and join datasets, V1 and V2.

| form | keys |
|---|---|
| V1 | `splits: {name: {datasets: [reference + weight, subflavor]}}` |
| reference | `path, split_part, subflavors, aux, subset, dataset_config, split_config,` multiplier |
| blend | `blend: [reference or join, + weight], subset` |
| blend_epochized | `blend_epochized: [reference or join, + repetitions], subset` |
| join | `join: [member] or {name: member}, joiner, split_part, subflavors, subset`, multiplier |

The multiplier is `shuffle_over_epochs_multiplier`. A file without a `__class__` is V1. Paths are relative to the file.
Outer subflavors override inner ones, also those of `dataset.yaml`. Checked against megatron-energon 7.4.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.abc import Source, Stream
from penstock.errors import ConfigError
from penstock.recipe.build import Builder, Each, Mode
from penstock.recipe.code import joiner_name, make_code
from penstock.recipe.context import Budget
from penstock.recipe.places import aux_place, beside
from penstock.recipe.tree import Joined, Leaf, Mixed, MixKind, Multiplier, Node, Ranges, leaves
from penstock.recipe.values import check_keys, check_list, check_map, check_text, unknown
from penstock.store.place import place_of
from penstock.types import OpenOptions

V1, V2 = "Metadataset", "MetadatasetV2"
SUFFIX = (".yaml", ".yml")
JSONL = (".jsonl", ".ndjson")
RULES = ("error", "skip", "none")

_TOP = ("__module__", "__class__", "splits")
_PLACE = ("split_part", "subflavors", "shuffle_over_epochs_multiplier")
_CONFIGS = ("dataset_config", "split_config")
_REFERENCE = ("path", *_PLACE, *_CONFIGS, "aux", "subset")
_JOIN = ("join", "joiner", *_PLACE, *_CONFIGS, "subset")
_MEMBER = ("path", *_PLACE, *_CONFIGS, "nonmatch", "aux", "subset")
_V1_REFERENCE = ("path", *_PLACE, *_CONFIGS, "weight", "subflavor")
_NUMBERS: dict[MixKind, str] = {"blend": "weight", "blend_epochized": "repetitions"}


@dataclass(frozen=True, slots=True)
class _Above:
    """Values that a node inherits.

    Attributes:
        subflavors: subflavors of the outer levels, which win.
        ranges: subsets of the outer levels, the innermost first.
        multiplier: product over the outer levels.
        budget: limits of the whole recipe.
    """

    path: str
    split: str
    subflavors: Mapping[str, Any]
    ranges: Ranges
    multiplier: Multiplier
    files: tuple[str, ...]
    budget: Budget


def read_metadataset(path: str | os.PathLike[str], split: str, budget: Budget | None = None) -> Node:
    """Read one split of a metadataset, without opening its datasets.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file isn't YAML.
        TooLarge: there are too many datasets, or too deeply nested files.
        ConfigError: a key is unknown, a value is invalid, or the split doesn't exist.
    """
    budget = Budget() if budget is None else budget
    return _file(_Above(place_of(path).absolute, split, {}, (), 1, (), budget))


def split_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the splits of a metadataset, in order.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file isn't YAML.
    """
    found = os.fspath(path)
    value = check_map(Budget().read(found, "metadataset", ()), "the metadataset", found)
    return [str(name) for name in check_map(value.get("splits"), "`splits`", found)]


def open_metadataset(
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    mode: Mode = "train",
    seed: int | None = None,
    lanes: int = 1,
    joiners: Mapping[str, Any] | None = None,
    sample_types: Mapping[str, Any] | None = None,
    trust: bool = False,
    follow_links: bool = False,
    raw: bool = False,
    each: Each | None = None,
) -> Source[Any] | Stream[Any]:
    """Open one split of one of Energon's metadatasets.

    A single dataset, a join, `blend_epochized`, and everything with `mode="val"` is a source of one epoch. A weighted
    `blend` in training is an endless stream. In validation each sample comes once, one dataset after another.

    Args:
        path: YAML file or URL; paths in it are relative to it.
        split: name of the split.
        mode: `"train"` or `"val"`.
        seed: seed of a weighted blend. If None, it is 0, or comes from an enclosing blend.
        lanes: lanes of a weighted blend.
        joiners: `module.name` → the function or class of that name in the file, which takes samples as dicts.
        sample_types: `module.Class` → a dataclass or TypedDict of that name in the file or a `dataset.yaml`.
        trust: import functions and classes that are in neither mapping, and run code that comes with the data.
        follow_links: read datasets through links that lead out of their directories.
        raw: return samples as stored bytes, also from typed datasets.
        each: called with each dataset's source and node; its result replaces the source, such as a `Map` over it.

    Returns:
        A source or a stream.

    Raises:
        NotFound: a file or dataset doesn't exist.
        FormatError: the file isn't YAML, or a dataset is damaged.
        ConfigError: a key or value is invalid, or a join fails.
        UnsafeData: the file names code that is neither registered nor trusted.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.open_metadataset("metadataset.yaml", seed=0)
        >>> sorted(stream[position]["caption"] for position in range(2))
        ['picture 0', 'picture 1']
        >>> len(ps.open_metadataset("metadataset.yaml", split="val", mode="val"))
        6
    """
    code = make_code(joiners, sample_types, trust, follow_links)
    builder = Builder(code, OpenOptions(raw=raw, trust=trust, follow_links=follow_links), lanes, each)
    return build_metadataset(builder, path, split, mode, seed, Budget())


def build_metadataset(
    builder: Builder, path: str | os.PathLike[str], split: str, mode: Mode, seed: int | None, budget: Budget
) -> Source[Any] | Stream[Any]:
    """Build a metadataset; counts towards the limits of the enclosing recipe. See `open_metadataset`."""
    if mode not in ("train", "val"):
        raise unknown(str(mode), ("train", "val"), "no such mode", None)
    return builder.build(read_metadataset(path, split, budget), mode, seed)


def traverse_metadataset(path: str | os.PathLike[str], *, split: str = "train") -> list[Leaf]:
    """List the datasets of one split of a metadataset, in order, without opening them.

    Args:
        path: YAML file or URL.
        split: name of the split.

    Returns:
        One entry per dataset, with everything it inherits.

    Examples:
        >>> from penstock.recipe import traverse_metadataset
        >>> [leaf.path.rpartition("/")[2] for leaf in traverse_metadataset("metadataset.yaml")]
        ['pictures']
    """
    return list(leaves(read_metadataset(path, split)))


def is_metadataset(value: Any) -> bool:
    """Return whether the content of a YAML file is a metadataset rather than a Penstock recipe."""
    return isinstance(value, dict) and "splits" in value


def _file(above: _Above) -> Node:
    path = above.path
    if path in above.files:
        raise ConfigError("a metadataset contains itself", path=path, found=" → ".join((*above.files, path)))
    value = check_map(above.budget.read(path, "metadataset", above.files), "the metadataset", path)
    above = replace(above, files=(*above.files, path))
    check_keys(value, _TOP, "the metadataset", path)
    version = value.get("__class__", V1)
    if version not in (V1, V2):
        raise unknown(str(version), (V1, V2), "unknown metadataset class", path)
    splits = check_map(value.get("splits"), "`splits`", path)
    if above.split not in splits:
        raise unknown(above.split, list(splits), "the metadataset doesn't have this split", path)
    found = check_map(splits[above.split], f"the split {above.split!r}", path)
    return _first_version(found, above) if version == V1 else _node(found, f"the split {above.split!r}", above)


def _first_version(value: dict[str, Any], above: _Above) -> Node:
    check_keys(value, ("datasets",), f"the split {above.split!r}", above.path)
    items: list[tuple[str, int | float, Node]] = []
    for number, one in enumerate(check_list(value.get("datasets"), "`datasets`", above.path)):
        what = f"datasets[{number}]"
        item = check_map(one, what, above.path)
        check_keys(item, _V1_REFERENCE, what, above.path)
        given = {key: each for key, each in item.items() if key not in ("weight", "subflavor")}
        if item.get("subflavor") is not None:
            further = check_map(item.get("subflavors") or {}, f"{what}.subflavors", above.path)
            given["subflavors"] = {"__subflavor__": item["subflavor"], **further}
        items.append((_name(given), _number(item, "weight", what, above), _reference(given, what, above)))
    return _mixed("blend", items, above)


def _node(value: dict[str, Any], what: str, above: _Above) -> Node:
    forms = [form for form in ("path", "blend", "blend_epochized", "join") if form in value]
    if len(forms) != 1:
        known = (*_REFERENCE, "blend", "blend_epochized", "join", "joiner")
        check_keys(value, known, what, above.path)
        raise ConfigError(
            f"{what} needs exactly one of path, blend, blend_epochized and join",
            path=above.path,
            found=", ".join(forms) or ", ".join(value) or "nothing",
        )
    [form] = forms
    if form == "path":
        return _reference(value, what, above)
    if form == "join":
        return _joined(value, what, above)
    return _mix("blend" if form == "blend" else "blend_epochized", value, what, above)


def _mix(kind: MixKind, value: dict[str, Any], what: str, above: _Above) -> Mixed:
    check_keys(value, (kind, "subset"), what, above.path)
    inside = replace(above, ranges=_ranges(value, what, above, relative=True))
    number = _NUMBERS[kind]
    items: list[tuple[str, int | float, Node]] = []
    for place, one in enumerate(check_list(value[kind], f"{what}.{kind}", above.path)):
        where = f"{what}.{kind}[{place}]"
        item = check_map(one, where, above.path)
        given = {key: each for key, each in item.items() if key != number}
        known = _JOIN if "join" in given else _REFERENCE if "path" in given else (*_REFERENCE, "join", "joiner")
        check_keys(item, (*known, number), where, above.path)
        if "path" not in given and "join" not in given:
            raise ConfigError(f"{where} has neither path nor join", path=above.path, found=", ".join(item) or "nothing")
        node = _joined(given, where, inside) if "join" in given else _reference(given, where, inside)
        items.append((_name(given), _number(item, number, where, above), node))
    return _mixed(kind, items, above)


def _mixed(kind: MixKind, items: list[tuple[str, int | float, Node]], above: _Above) -> Mixed:
    above.budget.count_node(above.path)
    names: dict[str, int] = {}
    children: list[tuple[str, int | float, Node]] = []
    for name, number, node in items:
        if isinstance(node, Mixed) and node.kind != kind:
            raise ConfigError(
                "blend and blend_epochized can't be mixed in one tree",
                path=above.path,
                found=f"{name!r} is a {node.kind} inside a {kind}",
            )
        names[name] = names.get(name, 0) + 1
        children.append((name if names[name] == 1 else f"{name}-{names[name]}", number, node))
    return Mixed(kind, tuple(children), above.path)


def _reference(value: dict[str, Any], what: str, above: _Above) -> Node:
    above.budget.count_node(above.path)
    check_keys(value, _REFERENCE, what, above.path)
    path = beside(above.path, check_text(value.get("path"), f"{what}.path", above.path))
    inside = _inherited(value, what, above)
    if path.endswith(SUFFIX):
        refused = [key for key in ("aux", *_CONFIGS) if value.get(key) is not None]
        if refused:
            raise ConfigError(
                f"{what} refers to a metadataset, which can't have {', '.join(refused)}",
                path=above.path,
                found=path,
                hint="Set it on the datasets in that file",
            )
        ranges = _ranges(value, what, above, relative=True)
        return _file(replace(inside, path=path, ranges=ranges))
    aux = check_map(value.get("aux") or {}, f"{what}.aux", above.path)
    places = {name: _aux(one, f"{what}.aux.{name}", above) for name, one in aux.items()}
    configs = {key: _optional_text(value, key, what, above) for key in _CONFIGS}
    given = [key for key, one in configs.items() if one is not None]
    if given and path.endswith(JSONL):
        raise ConfigError(f"{what} is a JSONL file, which can't have {', '.join(given)}", path=above.path, found=path)
    return Leaf(
        path,
        inside.split,
        inside.subflavors,
        _ranges(value, what, above),
        places,
        configs["dataset_config"],
        configs["split_config"],
        inside.multiplier,
    )


def _aux(value: Any, what: str, above: _Above) -> tuple[str, bool]:
    path, is_folder = aux_place(above.path, check_text(value, what, above.path))
    if path.endswith(SUFFIX):
        raise ConfigError(f"{what} is a metadataset; auxiliary data must be datasets or folders", path=above.path)
    return path, is_folder


def _joined(value: dict[str, Any], what: str, above: _Above) -> Joined:
    above.budget.count_node(above.path)
    check_keys(value, _JOIN, what, above.path)
    inside = _inherited(value, what, above)
    given = value["join"]
    named = isinstance(given, dict)
    pairs = list(check_map(given, f"{what}.join", above.path).items()) if named else []
    if not named:
        pairs = [(str(place), one) for place, one in enumerate(check_list(given, f"{what}.join", above.path))]
    if len(pairs) < 2:
        raise ConfigError(f"{what} joins fewer than two datasets", path=above.path, found=len(pairs))
    configs = {key: value[key] for key in _CONFIGS if value.get(key) is not None}
    members = {name: _member(one, f"{what}.join.{name}", configs, inside) for name, one in pairs}
    rules = {name: rule for name, (_, rule) in members.items()}
    first = next(iter(rules))
    if rules.pop(first) != "error":
        raise ConfigError(
            f"{what}: the first member determines the rows, so its nonmatch must be error", path=above.path
        )
    joiner = joiner_name(value.get("joiner"), f"{what}.joiner", above.path)
    own = {name: member for name, (member, _) in members.items()}
    ranges = _ranges(value, what, above)
    return Joined(own, named, rules, joiner, inside.subflavors, ranges, inside.multiplier, above.path)


def _member(value: Any, what: str, configs: Mapping[str, Any], above: _Above) -> tuple[Leaf, str]:
    item = check_map(value, what, above.path)
    check_keys(item, _MEMBER, what, above.path)
    refused = [key for key in ("aux", "subset") if item.get(key) is not None]
    if refused:
        raise ConfigError(
            f"{what} is a member of a join, where {refused[0]} has no effect",
            path=above.path,
            hint="Remove it, or set it on the join",
        )
    rule = item.get("nonmatch", "error")
    if rule not in RULES:
        # A bare `none` is text; `null` means that there is no value.
        raise unknown(str(rule), RULES, f"invalid nonmatch in {what}", above.path)
    given = {key: one for key, one in {**configs, **item}.items() if key != "nonmatch"}
    leaf = _reference(given, what, replace(above, ranges=()))
    if not isinstance(leaf, Leaf) or leaf.path.endswith(JSONL):
        raise ConfigError(f"{what} can't be joined", path=above.path, found=item.get("path"), expected="a WebDataset")
    return leaf, rule


def _inherited(value: dict[str, Any], what: str, above: _Above) -> _Above:
    own = check_map(value.get("subflavors") or {}, f"{what}.subflavors", above.path)
    split = _optional_text(value, "split_part", what, above) or above.split
    multiplier = value.get("shuffle_over_epochs_multiplier", 1)
    is_number = (
        isinstance(multiplier, int) and not isinstance(multiplier, bool) and (multiplier == -1 or multiplier > 0)
    )
    if multiplier is not None and not is_number:
        raise ConfigError(
            f"{what}.shuffle_over_epochs_multiplier is not a number of epochs",
            path=above.path,
            found=repr(multiplier),
            expected="1 or more, -1 (with replacement) or null (no shuffling)",
        )
    product = _multiplied(multiplier, above.multiplier)
    return replace(above, split=split, subflavors={**own, **above.subflavors}, multiplier=product)


def _multiplied(one: Multiplier, other: Multiplier) -> Multiplier:
    if one is None or other is None:
        return None
    return -1 if -1 in (one, other) else one * other


def _ranges(value: dict[str, Any], what: str, above: _Above, *, relative: bool = False) -> Ranges:
    """Return the subsets of a node and its outer levels."""
    given = value.get("subset")
    if given is None:
        return above.ranges
    item = check_map(given, f"{what}.subset", above.path)
    check_keys(item, ("range",), f"{what}.subset", above.path)
    bounds = check_list(item.get("range"), f"{what}.subset.range", above.path)
    if len(bounds) != 2 or any(isinstance(one, bool) or not isinstance(one, (int, str)) for one in bounds):
        raise ConfigError(
            f"{what}.subset.range is not a range",
            path=above.path,
            found=repr(bounds),
            expected='[a, b] in samples, [a, end], or percentages such as ["0%", "12.5%"]',
        )
    if relative and not isinstance(bounds[0], str):
        raise ConfigError(
            f"{what}.subset counts samples: only use absolute subset ranges for a leaf dataset",
            path=above.path,
            found=repr(bounds),
            expected='percentages such as ["0%", "50%"]',
        )
    start, stop = bounds
    return ((start, stop), *above.ranges)


def _number(item: dict[str, Any], key: str, what: str, above: _Above) -> int | float:
    value = item.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigError(f"{what}.{key} is not a number", path=above.path, found=repr(value), expected="0 or more")
    return value


def _optional_text(value: dict[str, Any], key: str, what: str, above: _Above) -> str | None:
    one = value.get(key)
    return None if one is None else check_text(one, f"{what}.{key}", above.path)


def _name(item: Mapping[str, Any]) -> str:
    """Return the name of a child: the end of its path."""
    path = item.get("path")
    if not isinstance(path, str):
        return "join"
    name = path.rstrip("/").rpartition("/")[2] or path
    for suffix in (*SUFFIX, *JSONL):
        name = name.removesuffix(suffix)
    return name or path

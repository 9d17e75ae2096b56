"""Short forms of recipes: maps without `kind`, as in Energon's files, which are expanded to full nodes.

A map holds exactly one of `path`, `blend`, `blend_epochized`, `concat`, `join` and `stages`. Its other keys are
applied to it, in this order: `subset`, `subflavors`, `aux`, `fill-in-the-middle`, `window`, `map`, `shuffle` or
`sequential`, `skip`, `pack`. `window`, `fill-in-the-middle` and `subset` of a mix apply to all datasets in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from penstock.errors import ConfigError
from penstock.recipe.code import joiner_name
from penstock.recipe.kinds import (
    COUNT,
    FLAG,
    FREE,
    INDEX,
    KINDS,
    MAYBE_INT,
    MAYBE_TEXT,
    NODE,
    PAIRS,
    TEXT,
    WEIGHT,
)  # fmt: skip
from penstock.recipe.places import aux_place
from penstock.recipe.schedule import LENGTH, SCHEDULE
from penstock.recipe.values import check_keys, check_list, check_map, check_value, number_of

_FILES = (".yaml", ".yml", ".json")
_FILL_IN = "fill-in-the-middle"
_PER_DATASET = ("subset", _FILL_IN, "window")


def expand(value: Any, path: str | None, at: str = "", taken: tuple[str, ...] = ()) -> Any:
    """Expand a short node; full nodes stay as they are, but their children may be short.

    Raises:
        ConfigError: a key is unknown, or several forms are combined.
    """
    what = at or "the recipe"
    node = check_map(value, what, path)
    if "kind" in node:
        return node
    bases = [base for base in BASES if base in node]
    if len(bases) != 1:
        options = (key for keys in OWN.values() for key in keys)
        check_keys(node, ("kind", *taken, *BASES, *MODIFIERS, *options), what, path)
        raise ConfigError(
            f"{what} needs exactly one of {', '.join(BASES)}", path=path, found=", ".join(bases) or "none of them"
        )
    [base] = bases
    check_keys(node, ("kind", base, *taken, *OWN[base], *MODIFIERS), what, path)
    _check_values(node, {key: OF_OWN[key] for key in OWN[base]} | MODIFIERS, path, what)
    if base == "path":
        return _modified(_opened(node), node, path, what)
    below = {key: node[key] for key in _PER_DATASET if key in node and base != "join"}
    own = {key: one for key, one in node.items() if key not in below}
    return _modified(_MIXES[base](own, below, path, what), own, path, what)


def _check_values(node: Mapping[str, Any], known: Mapping[str, Any], path: str | None, what: str) -> None:
    """Check values before the expansion, so that errors use the names in the file."""
    for key, schema in known.items():
        if key == "window" and node.get(key) is not None:
            _check_window(node[key], path, what)
        # Energon's files have null for omitted values.
        if node.get(key) is not None:
            check_value(node[key], schema, f"{what}.{key}", path)


def _check_window(given: Any, path: str | None, what: str) -> None:
    window = check_map(given, f"{what}.window", path)
    if len(window) != 1:
        found = ", ".join(window) or "none"
        raise ConfigError(
            f"{what}.window must be a single packing", path=path, found=found, expected=" or ".join(WINDOWS)
        )
    check_keys(window, WINDOWS, f"{what}.window", path)


def _opened(node: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: node[key] for key in ("path", *OWN["path"]) if key in node}
    is_file = str(node["path"]).endswith(_FILES) and not given.get("format")
    return {"kind": "metadataset" if is_file else "open", **given}


def _modified(made: dict[str, Any], node: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    for bounds in _several(node.get("subset")):
        made = {"kind": "subset", "range": bounds["range"], "source": made}
    if node.get("subflavors"):
        made = {"kind": "subflavors", "subflavors": node["subflavors"], "source": made}
    if node.get("aux"):
        made = {"kind": "aux", "aux": _stores(node["aux"], path, what), _side(made): made}
    if node.get(_FILL_IN):
        made = {"kind": _FILL_IN, **node[_FILL_IN], "source": made}
    if node.get("window"):
        [(kind, options)] = node["window"].items()
        made = {"kind": kind, **options, "source": made}
    for fn in _several(node.get("map")):
        made = {"kind": "map", "fn": fn, _side(made): made}
    if node.get("shuffle") is not None and node.get("sequential") is not None:
        raise ConfigError(f"{what} can't be both shuffled and sequential", path=path)
    for order in ("shuffle", "sequential"):
        if node.get(order) not in (None, False):
            options = {} if node[order] is True else node[order]
            made = {"kind": order, **options, "source": made}
    if node.get("skip"):
        made = {"kind": "skip", "ranges": node["skip"], "stream": made}
    if node.get("pack"):
        made = _packed(made, node["pack"])
    return made


def _packed(made: dict[str, Any], pack: Mapping[str, Any]) -> dict[str, Any]:
    names = " ".join(pack.get(key) or "-" for key in ("select", "merge"))
    rest = {key: pack[key] for key in ("window", "leftover") if key in pack}
    return {"kind": "pack-stream", **rest, "fn": names, "stream": made}


def _stores(given: Any, path: str | None, what: str) -> dict[str, Any]:
    stores: dict[str, Any] = {}
    for name, one in check_map(given, f"{what}.aux", path).items():
        if isinstance(one, str):
            place, is_folder = aux_place(path or "./recipe", one)
            one = {"kind": "open", "path": place, "raw": True, **({"format": "folder"} if is_folder else {})}
            one |= {"flavor": "energon"} if place.endswith(".jsonl") else {}
        stores[name] = one
    return stores


def _items(base: str, node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> list[Any]:
    """Return (name, the mix's keys for the child, full node) of each child."""
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    taken: dict[str, int] = {}
    for place, one in enumerate(check_list(node[base], f"{what}.{base}", path)):
        where = f"{what}.{base}[{place}]"
        child = check_map(one, where, path)
        own = {key: child[key] for key in ITEM.get(base, ()) if key in child}
        _check_values(own, OF_ITEM, path, where)
        rest = inherited({key: each for key, each in child.items() if key not in own}, below)
        given = own.pop("name", None)
        name = _name_of(rest, place) if given is None else given
        taken[name] = taken.get(name, 0) + 1
        full = expand(rest, path, where, ITEM.get(base, ()))
        found.append((name if taken[name] == 1 else f"{name}-{taken[name]}", own, full))
    return found


def inherited(child: dict[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Return a child of a mix, with the values that apply to all children."""
    if "kind" in child or not below:
        return child
    ranges = [*_several(child.get("subset")), *_several(below.get("subset"))]
    others = {key: one for key in (_FILL_IN, "window") if (one := child.get(key, below.get(key)))}
    return {**child, **({"subset": ranges} if ranges else {}), **others}


def _blend(node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    items = _items("blend", node, below, path, what)
    children = [{"name": name, "weight": own.get("weight", 1), "stream": child} for name, own, child in items]
    return {"kind": "blend", **{key: node[key] for key in OWN["blend"] if key in node}, "children": children}


def _epochized(node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    children: list[dict[str, Any]] = []
    for name, own, child in _items("blend_epochized", node, below, path, what):
        times = own.get("repetitions", 1)
        if child["kind"] != "epochs":
            children.append({"name": name, "repetitions": times, "of": child})
            continue
        # As in Energon's files: part of a mix is that part of each dataset in it.
        for inner in child["children"]:
            number = Fraction(str(number_of(times))) * Fraction(str(number_of(inner["repetitions"])))
            both = int(number) if number.denominator == 1 else str(number)
            children.append({"name": f"{name}/{inner['name']}", "repetitions": both, "of": inner["of"]})
    return {"kind": "epochs", **{key: node[key] for key in OWN["blend_epochized"] if key in node}, "children": children}


def _concat(node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    sources = [child for _, _, child in _items("concat", node, below, path, what)]
    return {"kind": "concat", **{key: node[key] for key in OWN["concat"] if key in node}, "sources": sources}


def _stages(node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    stages = [{**own, "stream": child} for _, own, child in _items("stages", node, below, path, what)]
    return {"kind": "stages", "stages": stages}


def _joined(node: Mapping[str, Any], below: Mapping[str, Any], path: str | None, what: str) -> dict[str, Any]:
    given, named = node["join"], isinstance(node["join"], dict)
    pairs = list(given.items()) if named else [(str(n), one) for n, one in enumerate(check_list(given, what, path))]
    members: list[dict[str, Any]] = []
    for place, (name, one) in enumerate(pairs):
        where = f"{what}.join.{name}"
        child = check_map(one, where, path)
        how = child.get("nonmatch", "error")
        _check_values(child, {"nonmatch": OF_ITEM["nonmatch"]}, path, where)
        if place == 0 and how != "error":
            raise ConfigError(f"{where}.nonmatch: the first member determines the rows", path=path, found=how)
        source = expand({key: each for key, each in child.items() if key != "nonmatch"}, path, where, ITEM["join"])
        members.append({"name": name, "how": None if place == 0 else how, "source": source})
    joiner = node.get("joiner")
    if isinstance(joiner, dict):
        joiner = joiner_name(joiner, f"{what}.joiner", path)
    return {"kind": "join", "named": named, "joiner": joiner, "members": members}


_MIXES = {
    "blend": _blend,
    "blend_epochized": _epochized,
    "concat": _concat,
    "stages": _stages,
    "join": _joined,
}


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _side(made: Mapping[str, Any]) -> str:
    """Return the key for a full node below another one: source or stream."""
    kind = made["kind"]
    if kind in ("aux", "map", "cook"):
        return "source" if "source" in made else "stream"
    return "stream" if kind in _STREAMS else "source"


_STREAMS = ("shuffle", "sequential", "modalitiesshuffle", "blend", "stages", "skip", "balance", "streaming-order")


def _name_of(child: Mapping[str, Any], place: int) -> str:
    path = child.get("path")
    if not isinstance(path, str):
        return str(place)
    name = path.rstrip("/").rpartition("/")[2]
    return name.partition(".")[0] or str(place)


VERSION = 1
TOP = ("penstock", "stream", "source", "batch")
BATCH = ("global_batch", "micro_batch", "world", "tail")
BASES = ("path", "blend", "blend_epochized", "concat", "join", "stages")
WINDOWS = ("chunk", "whole", "best-fit", "megatron-blocks")
OWN: dict[str, tuple[str, ...]] = {
    "path": (*KINDS["open"].optional, "mode", "seed", "lanes"),
    "blend": ("seed", "lanes", "mixed_tokenizers", "schedule"),
    "blend_epochized": ("first_pass",),
    "concat": ("mixed_tokenizers",),
    "join": ("joiner",),
    "stages": (),
}
ITEM = {
    "blend": ("weight", "name"),
    "blend_epochized": ("repetitions", "name"),
    "join": ("nonmatch",),
    "stages": ("length",),
}
PACK = ("window", "select", "merge", "leftover")
JOINER = ("__module__", "__class__", "__function__")


def _closed(keys: dict[str, Any], *required: str, **rules: Any) -> dict[str, Any]:
    """Return the schema of a map with exactly these keys."""
    given = {"required": list(required)} if required else {}
    return {"type": "object", "properties": keys, "additionalProperties": False, **given, **rules}


def _options(kind: str) -> dict[str, Any]:
    """Return the options of a node of this kind, without its source or stream."""
    known = KINDS[kind]
    keys = {**known.required, **known.optional, **known.derived}
    return _closed({key: one for key, one in keys.items() if key not in ("source", "stream")})


_RANGE = _closed({"range": {"type": "array", "minItems": 2, "maxItems": 2}}, "range")

MODIFIERS: dict[str, Any] = {
    "subset": {"anyOf": [_RANGE, {"type": "array", "items": _RANGE}]},
    "subflavors": FREE,
    "aux": {"type": "object", "additionalProperties": {"anyOf": [TEXT, NODE]}},
    "fill-in-the-middle": _options("fill-in-the-middle"),
    "window": _closed({kind: _options(kind) for kind in WINDOWS}, minProperties=1, maxProperties=1),
    "map": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
    "shuffle": {"anyOf": [FLAG, _options("shuffle")]},
    "sequential": {"anyOf": [FLAG, _options("sequential")]},
    "skip": PAIRS,
    "pack": _closed(
        {"window": COUNT, "select": MAYBE_TEXT, "merge": MAYBE_TEXT, "leftover": {"enum": ["error", "drop"]}}, "window"
    ),
}
"""Keys allowed with any form, in the order of their application."""

OF_OWN: dict[str, Any] = {
    **KINDS["open"].optional,
    "mode": {"enum": ["train", "val"]},
    "seed": MAYBE_INT,
    "lanes": {"type": ["integer", "null"], "minimum": 1},
    "mixed_tokenizers": FLAG,
    "schedule": SCHEDULE,
    "first_pass": INDEX,
    "joiner": {"anyOf": [MAYBE_TEXT, _closed(dict.fromkeys(JOINER, TEXT), "__module__")]},
}
"""Keys allowed with some forms: see `OWN`."""

OF_ITEM: dict[str, Any] = {
    "weight": WEIGHT,
    "repetitions": WEIGHT,
    "name": TEXT,
    "nonmatch": {"enum": ["error", "skip", "none"]},
    "length": LENGTH,
}
"""Keys of a mix for its children: see `ITEM`."""

OF_BATCH: dict[str, Any] = {
    "anyOf": [COUNT, _closed({**dict.fromkeys(BATCH, COUNT), "tail": {"enum": ["pad", "drop"]}})]
}

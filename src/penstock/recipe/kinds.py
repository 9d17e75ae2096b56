"""Kinds of recipe nodes: the keys of each, and the function that builds it.

Keys are described by JSON schemas; `schema.py` combines them. Derived keys, which a source or stream prints (versions,
counts, digests), are allowed: they are checked against the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock._digest import array_digest
from penstock._keywords import Decoding, definitions, recipe_schema_of
from penstock._kinds import is_finite
from penstock._naming import naming
from penstock.codec.parts import IMAGE_KINDS, DecodeOptions
from penstock.cook import Cooker, Crude, PackStream, cook
from penstock.errors import ConfigError, UnsafeData
from penstock.mix import Balance, Blend, Concat, Epochs, Join, Map, Stages, StreamingOrder, WithAux, subset
from penstock.order import Sequential, Shuffle, Skip, Take
from penstock.order.compat.modalities import ModalitiesShuffle
from penstock.order.compat.seqax import SeqaxParams, SeqaxPass
from penstock.order.ordered import OrderedStream
from penstock.pack import BestFit, Chunk, FillInTheMiddle, MegatronBlocks, PackByLength, Whole
from penstock.recipe.code import joiner_of
from penstock.recipe.context import Context
from penstock.recipe.flavored import Flavored
from penstock.recipe.leaf import format_of, open_leaf, said_part
from penstock.recipe.schedule import LENGTH, SCHEDULE, length_of, scheduled
from penstock.recipe.values import WEIGHT, number_of
from penstock.types import OpenOptions

Make: TypeAlias = Callable[[Context, Mapping[str, Any]], Any]

NODE: dict[str, Any] = {"$ref": "#/$defs/node"}
NODES: dict[str, Any] = {"type": "array", "items": NODE, "minItems": 1}
BY_NAME: dict[str, Any] = {"type": "object", "additionalProperties": NODE, "minProperties": 1}
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
PATHS: dict[str, Any] = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
FLAG: dict[str, Any] = {"type": "boolean"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
INDEX: dict[str, Any] = {"type": "integer", "minimum": 0}
MAYBE_INT: dict[str, Any] = {"type": ["integer", "null"]}
INT: dict[str, Any] = {"type": "integer"}
PAIRS: dict[str, Any] = {"type": "array", "items": {"type": "array", "items": INDEX, "minItems": 2, "maxItems": 2}}
FREE: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of node.

    Attributes:
        make: function that builds the node.
        required: key → its schema.
        derived: keys that follow from the others.
        one_of: exactly one of these keys is required.
    """

    make: Make
    required: Mapping[str, Any]
    optional: Mapping[str, Any]
    derived: Mapping[str, Any]
    one_of: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return ("kind", *self.required, *self.optional, *self.one_of, *self.derived)


def item(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a list of maps with these keys."""
    keys = {**required, **(optional or {})}
    one = {"type": "object", "properties": keys, "required": list(required), "additionalProperties": False}
    return {"type": "array", "items": one, "minItems": 1}


_OPEN = {
    "format": TEXT, "dataset_config": TEXT, "split_config": TEXT,
    **{name: recipe_schema_of(kind, option) for name, kind, option in definitions(Decoding)},
}  # fmt: skip


def _open(context: Context, node: Mapping[str, Any]) -> Any:
    several = [context.beside(one) for one in ([node["path"]] if isinstance(node["path"], str) else node["path"])]
    path = several[0]
    given = {key: value for key, value in node.items() if key not in ("kind", "path")}
    if given.get("trust") and not context.code.trust:
        raise context.untrusted("code that is part of the dataset", path)
    if given.get("follow_links") and not context.code.follow_links:
        hint = "Pass follow_links=True (--follow-links) if they are intended"
        raise UnsafeData(
            "the recipe needs links that point outside a dataset folder", path=context.path, found=path, hint=hint
        )
    given |= {"follow_links": True} if context.code.follow_links else {}
    given |= {"excludes": context.beside(given["excludes"])} if given.get("excludes", False) else {}
    config = {key: given.pop(key) for key in ("dataset_config", "split_config") if key in given}
    if not isinstance(node["path"], str):
        return context.open_source(several, **given, **config)
    if not config and not context.code.types:
        return context.open_source(path, **given)
    # Types are those of a `dataset.yaml`: nothing else uses them.
    name = given.pop("format", None) or ("webdataset" if config else format_of(path))
    if name != "webdataset":
        return context.open_source(path, **given, format=name)
    columns = given.pop("columns", None)
    options = OpenOptions(**given, columns=None if columns is None else tuple(columns))
    source = open_leaf(path, options.split, **config, sample_types=context.code.types, options=options)
    said = said_part(source)
    return source if said is None else said


def _take(context: Context, node: Mapping[str, Any]) -> Any:
    return Take(context.source(node), node["start"], node["stop"])


def _subset(context: Context, node: Mapping[str, Any]) -> Any:
    return subset(context.source(node), node["range"])


def _concat(context: Context, node: Mapping[str, Any]) -> Any:
    sources = [context.source_of(one, f"sources[{place}]") for place, one in enumerate(node["sources"])]
    return Concat(sources, mixed_tokenizers=node.get("mixed_tokenizers", False))


def _join(context: Context, node: Mapping[str, Any]) -> Any:
    names = [one["name"] for one in node["members"]]
    sources = [context.source_of(one["source"], f"members[{place}]") for place, one in enumerate(node["members"])]
    how = [one.get("how") or "error" for one in node["members"]][1:]
    label = node.get("joiner")
    joiner = None
    if label is not None:
        # Names from a metadataset are used in its recipe and called in the same way.
        theirs = ":" not in label
        joiner = joiner_of(label, context.code, context.path) if theirs else context.code.function(label, context.path)
    given = dict(zip(names, sources, strict=True)) if node.get("named", True) else sources
    rules: Any = dict(zip(names[1:], how, strict=True)) if node.get("named", True) else how
    return Join(given, how=rules, joiner=joiner, name=label)


def _epochs(context: Context, node: Mapping[str, Any]) -> Any:
    children = {
        one["name"]: (context.child(one["of"], f"children.{one['name']}"), times)
        for one, times in _weighed(context, node, "repetitions")
    }
    return Epochs(children, first_pass=node.get("first_pass", 0))


def _weighed(context: Context, node: Mapping[str, Any], key: str) -> list[tuple[Mapping[str, Any], Any]]:
    """Return the children and their numbers; children without samples are dropped unopened, as in Energon's files."""
    found = [(one, number_of(one[key])) for one in node["children"]]
    if not any(number for _, number in found):
        what = f"{context.at or 'the recipe'} is empty: all {key.rstrip('s')}s are 0"
        raise ConfigError(what, path=context.path, found=", ".join(one["name"] for one, _ in found))
    return [(one, number) for one, number in found if number]


def _aux(context: Context, node: Mapping[str, Any]) -> Any:
    stores = {name: context.source_of(one, f"aux.{name}") for name, one in node["aux"].items()}
    return WithAux(context.either(node), **stores)


def _map(context: Context, node: Mapping[str, Any]) -> Any:
    return Map(context.either(node), context.code.function(node["fn"], context.path), node["fn"])


def _cook(context: Context, node: Mapping[str, Any]) -> Any:
    below = context.either(node)
    cookers: list[Any] = []
    names, seed = node["cookers"]
    for name, subflavors in names:
        known = context.code.function(name, context.path)
        cookers.append(known if isinstance(known, Cooker) else Cooker(known, subflavors, name))
    return cook(below, cookers, seed=seed)


def _crude(context: Context, node: Mapping[str, Any]) -> Any:
    if node.get("trust") and not context.code.trust:
        raise context.untrusted("code that is part of the dataset", f"trust of {context.at or 'the recipe'} (crude)")
    image = node.get("decode")
    own = {key: node[key] for key in _DECODE if key in node}
    decode = None if image is None else DecodeOptions(image, **own)
    given = {"subflavors": node.get("subflavors"), "kind": node.get("sample_type")}
    return Crude(context.source(node), decode=decode, decode_parts=node.get("decode_parts", True), **given)


def _by_length(context: Context, node: Mapping[str, Any]) -> Any:
    source, name = context.source(node), node["fn"]
    label = name.partition(" ")[0]
    # Lengths that didn't come from a function are named by their digest, which can't be imported.
    is_array = _DIGEST.fullmatch(label) is not None
    if is_array and not {name, label} & dict(context.code.functions).keys():
        raise context.unknown_array("lengths", label, f"the length of each of {len(source):,} samples")
    lengths, merge = context.code.pair(name, context.path)
    if lengths is None:
        raise ConfigError("lengths are needed to pack by them", path=context.path, found=name)
    given = {"too_long": node["too_long"]} if "too_long" in node else {}
    made = PackByLength(source, node["room"], lengths, merge, name=name, **given)
    if is_array and not callable(lengths) and (other := array_digest(lengths)) != label:
        raise ConfigError("the lengths differ from those of the recipe", path=context.path, found=other, expected=label)
    return made


def _seqax(context: Context, node: Mapping[str, Any]) -> Any:
    return SeqaxPass(context.source(node), SeqaxParams(**{key: node[key] for key in _SEQAX}))


def _fill_in_the_middle(context: Context, node: Mapping[str, Any]) -> Any:
    given = {key: node[key] for key in ("rate", "spm_rate", "seed", "bos_id", *_FIM_IDS) if key in node}
    return FillInTheMiddle(context.source(node), **given)


def _windows(packing: Callable[..., Any], *keys: str) -> Make:
    def make(context: Context, node: Mapping[str, Any]) -> Any:
        return packing(**{key: node[key] for key in keys if key in node})(context.source(node))

    return make


def _shuffle(context: Context, node: Mapping[str, Any]) -> Any:
    keys = ("mode", "lanes", "open_blocks", "block_size")
    source = context.source(node)
    with naming(context.at, source):
        return Shuffle(source, node.get("seed"), **{key: node[key] for key in keys if key in node})


def _sequential(context: Context, node: Mapping[str, Any]) -> Any:
    source = context.source(node)
    with naming(context.at, source):
        return Sequential(source, node.get("lanes", 1))


def _blend(context: Context, node: Mapping[str, Any]) -> Any:
    names = [one["name"] for one in node["children"]]
    if len(set(names)) < len(names):
        raise ConfigError("two children have the same name", path=context.path, found=names)
    taken = _weighed(context, node, "weight")
    children = {one["name"]: context.child(one["stream"], f"children.{one['name']}") for one, _ in taken}
    if node.get("schedule") is not None:
        return scheduled(context, children, node)
    weights = {one["name"]: weight for one, weight in taken}
    mixed = node.get("mixed_tokenizers", False)
    return Blend(children, weights, node.get("seed"), lanes=node.get("lanes"), mixed_tokenizers=mixed)


def _stages(context: Context, node: Mapping[str, Any]) -> Any:
    stages: list[Any] = []
    for place, one in enumerate(node["stages"]):
        length = length_of(one.get("length"), context, f"{context.at or 'the recipe'}.stages[{place}].length")
        stages.append((length, context.child(one["stream"], f"stages[{place}]")))
    return Stages(stages)


def _skip(context: Context, node: Mapping[str, Any]) -> Any:
    return Skip(context.stream(node), [(start, stop) for start, stop in node["ranges"]])


def _balance(context: Context, node: Mapping[str, Any]) -> Any:
    own = {key: node[key] for key in ("steps", "seed") if key in node}
    stream, label = context.stream(node), node.get("costs")
    # By its own name only: no function produces costs.
    costs = None if label is None else dict(context.code.functions).get(label)
    known = getattr(getattr(stream, "source", None), "costs", None)
    lacks = isinstance(stream, OrderedStream) and costs is None  # for other streams Balance explains why
    if label is not None and lacks and (known is None or array_digest(known) != label):
        raise context.unknown_array("costs", label, f"the cost of each of {stream.size:,} samples")
    return Balance(stream, node["world"], costs, **own)


def _pack_stream(context: Context, node: Mapping[str, Any]) -> Any:
    select, merge = context.code.pair(node["fn"], context.path)
    given = {"leftover": node["leftover"]} if "leftover" in node else {}
    return PackStream(context.stream(node), node["window"], select, merge, name=node["fn"], **given)


_STREAMING = {
    "num_canonical_nodes": COUNT, "shuffle": FLAG, "shuffle_algo": TEXT, "shuffle_seed": INDEX,
    "shuffle_block_size": MAYBE_INT, "batching_method": TEXT, "partition_algo": TEXT, "sampling_method": TEXT,
    "sampling_granularity": COUNT,
}  # fmt: skip
_STATE = {"epoch": INDEX, "sample_in_epoch": INDEX, "initial_physical_nodes": MAYBE_INT}


def _streaming(context: Context, node: Mapping[str, Any]) -> Any:
    source = context.source(node)
    chosen = node.get("choose")
    given: Any = source
    if chosen is not None:
        parts = [source] if len(chosen) == 1 else list(source.children().values())
        if len(parts) != len(chosen) or not all(map(is_finite, parts)):
            raise ConfigError("choose= needs a number for each source", path=context.path, found=chosen)
        given = [(part, {"choose": number}) for part, number in zip(parts, chosen, strict=True)]
        if chosen == [len(part) for part in parts]:
            given = parts
    own = {key: node[key] for key in _STREAMING if key in node}
    world = (node.get("nodes", 1), node.get("ranks_per_node", 1), 1)
    made = StreamingOrder(given, world=world, batch_size=node["batch_size"], **own)
    if node.get("epoch") or node.get("sample_in_epoch") or node.get("initial_physical_nodes"):
        made.load_state_dict({
            "epoch": node.get("epoch", 0), "sample_in_epoch": node.get("sample_in_epoch", 0),
            "num_canonical_nodes": node["num_canonical_nodes"], "shuffle_seed": node["shuffle_seed"],
            "initial_physical_nodes": node.get("initial_physical_nodes") or node.get("nodes", 1),
        })  # fmt: skip
    return made


def _metadataset(context: Context, node: Mapping[str, Any]) -> Any:
    own = {key: node[key] for key in ("split", "mode", "seed", "lanes") if node.get(key) is not None}
    return context.open_file(context.beside(node["path"]), own, context.deep)


_DIGEST = re.compile("[0-9a-f]{16}")
_DECODE = ("trust", "most_pixels", "most_bytes", "frames", "sound")
_SEQAX: dict[str, Any] = {name: INDEX if name == "seed" else COUNT for name in SeqaxParams.__dataclass_fields__}
_SOURCE = {"source": NODE}
_FIM_IDS = ("prefix_id", "middle_id", "suffix_id")
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_STREAM = {"stream": NODE}
_VERSION = {"version": TEXT}
_EITHER = ("source", "stream")
_CHILD = {"name": TEXT, "weight": WEIGHT, "stream": NODE}
_HOW = {"enum": [None, "error", "skip", "none", "inner"]}
_MAYBE_COUNT = {"type": ["integer", "null"], "minimum": 1}
_MODE = {"enum": ["global", "blocks"]}
_COOKERS = {
    "type": "array",
    "prefixItems": [{"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}, "minItems": 1}, INT],
    "minItems": 2,
    "maxItems": 2,
}
_LABELS = {"enum": [None, "shift", "start-zero"]}
_FIELDS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}

KINDS: dict[str, Kind] = {
    "open": Kind(_open, {"path": PATHS}, _OPEN, {}),
    "metadataset": Kind(
        _metadataset, {"path": TEXT},
        {"split": TEXT, "mode": {"enum": ["train", "val"]}, "seed": MAYBE_INT, "lanes": COUNT}, {},
    ),
    "take": Kind(
        _take, {"start": INDEX, "stop": INDEX, **_SOURCE}, {}, {},
    ),
    "subset": Kind(_subset, {"range": {"type": "array", "minItems": 2, "maxItems": 2}, **_SOURCE}, {}, {}),
    "subflavors": Kind(
        lambda context, node: Flavored(context.source(node), node["subflavors"]),
        {"subflavors": FREE, **_SOURCE}, {}, {},
    ),
    "concat": Kind(_concat, {"sources": NODES}, {"mixed_tokenizers": FLAG}, {}),
    "join": Kind(
        _join, {"members": item({"name": TEXT, "source": NODE}, {"how": _HOW})},
        {"named": FLAG, "joiner": MAYBE_TEXT}, _VERSION,
    ),
    "epochs": Kind(
        _epochs, {"children": item({"name": TEXT, "repetitions": WEIGHT, "of": NODE})}, {"first_pass": INDEX}, _VERSION
    ),
    "aux": Kind(_aux, {"aux": BY_NAME}, {}, {}, _EITHER),
    "map": Kind(_map, {"fn": TEXT}, {}, {}, _EITHER),
    "cook": Kind(_cook, {"cookers": _COOKERS}, {}, {}, _EITHER),
    "crude": Kind(
        _crude, _SOURCE,
        {"subflavors": FREE, "decode": {"enum": [None, *IMAGE_KINDS]}, "decode_parts": FLAG, "trust": FLAG,
         "most_pixels": COUNT, "most_bytes": COUNT, "frames": FLAG, "sound": FLAG, "sample_type": TEXT}, {},
    ),
    "chunk": Kind(
        _windows(Chunk, "length", "overlap", "labels", "eos_id", "fields"), {"length": COUNT, **_SOURCE},
        {"overlap": INDEX, "labels": _LABELS, "eos_id": MAYBE_INT, "fields": _FIELDS},
        {**_VERSION, "borders": {"enum": ["index", "eos"]}},
    ),
    "whole": Kind(
        _windows(Whole, "length", "pad_id", "labels"), {"length": COUNT, **_SOURCE},
        {"pad_id": INDEX, "labels": {"enum": ["shift", "start-zero"]}}, _VERSION,
    ),
    "best-fit": Kind(_windows(BestFit, "length", "pad_id", "long"), {"length": COUNT, **_SOURCE},
        {"pad_id": INDEX, "long": {"enum": ["keep", "truncate", "drop"]}}, _VERSION),
    "fill-in-the-middle": Kind(
        _fill_in_the_middle,
        {"rate": _SHARE, "seed": INT, **dict.fromkeys(_FIM_IDS, INDEX), **_SOURCE},
        {"spm_rate": _SHARE, "bos_id": MAYBE_INT},
        _VERSION,
    ),
    "megatron-blocks": Kind(
        _windows(MegatronBlocks, "length", "labels"), {"length": COUNT, **_SOURCE}, {"labels": _LABELS}, _VERSION
    ),
    "pack-by-length": Kind(
        _by_length, {"room": COUNT, "fn": TEXT, **_SOURCE}, {"too_long": {"enum": ["error", "alone", "drop"]}}, _VERSION
    ),
    "seqax-pass": Kind(_seqax, {**_SEQAX, **_SOURCE}, {}, _VERSION),
    "shuffle": Kind(
        _shuffle, _SOURCE,
        {"seed": MAYBE_INT, "mode": _MODE, "lanes": COUNT, "open_blocks": COUNT, "block_size": COUNT},
        {**_VERSION, "blocks": TEXT},
    ),
    "sequential": Kind(
        _sequential, _SOURCE, {"lanes": COUNT}, _VERSION,
    ),
    "modalitiesshuffle": Kind(
        lambda context, node: ModalitiesShuffle(context.source(node), node["seed"]),
        {"seed": INT, **_SOURCE}, {"lanes": COUNT}, _VERSION,
    ),
    "blend": Kind(
        _blend, {"children": item(_CHILD, {"count": COUNT})},
        {"seed": MAYBE_INT, "lanes": _MAYBE_COUNT, "mixed_tokenizers": FLAG, "schedule": SCHEDULE}, _VERSION,
    ),
    "stages": Kind(_stages, {"stages": item({"stream": NODE}, {"length": LENGTH})}, {}, _VERSION),
    "skip": Kind(_skip, {"ranges": PAIRS, **_STREAM}, {}, {}),
    "balance": Kind(_balance, {"world": COUNT, **_STREAM}, {"steps": COUNT, "seed": INT}, {**_VERSION, "costs": TEXT}),
    "streaming-order": Kind(
        _streaming, {"batch_size": COUNT, **_SOURCE},
        {"nodes": COUNT, "ranks_per_node": COUNT, **_STREAMING, **_STATE, "choose": {"type": "array", "items": INDEX}},
        {**_VERSION, "proportions": {"type": "array"}, "shards": TEXT},
    ),
    "pack-stream": Kind(
        _pack_stream, {"window": COUNT, "fn": TEXT, **_STREAM}, {"leftover": {"enum": ["error", "drop"]}}, {}
    ),
}  # fmt: skip
"""Kind of node → how it is built."""

"""Every kind of node that a recipe may hold: its keys, and what it is made with.

A key is described as in JSON schema; `schema.py` makes the whole of it. Keys that a source or stream prints and that
follow from the others (versions, counts, digests) may stand there: they are held against what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from penstock._naming import naming
from penstock.codec.parts import DecodeOptions
from penstock.cook import Cooker, Crude, PackStream, cook
from penstock.errors import ConfigError
from penstock.mix import Balance, Blend, Concat, Epochs, Join, Map, Stages, StreamingOrder, WithAux, subset
from penstock.order import Sequential, Shuffle, Skip, Take
from penstock.order.compat_modalities import ModalitiesShuffle
from penstock.order.compat_seqax import SeqaxParams, SeqaxPass
from penstock.pack import BestFit, Chunk, MegatronBlocks, PackByLength, Whole
from penstock.recipe.code import joiner_of
from penstock.recipe.context import Context
from penstock.recipe.flavored import Flavored
from penstock.recipe.leaf import open_leaf
from penstock.types import OpenOptions

Make: TypeAlias = Callable[[Context, Mapping[str, Any]], Any]

NODE: dict[str, Any] = {"$ref": "#/$defs/node"}
NODES: dict[str, Any] = {"type": "array", "items": NODE, "minItems": 1}
BY_NAME: dict[str, Any] = {"type": "object", "additionalProperties": NODE, "minProperties": 1}
TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
FLAG: dict[str, Any] = {"type": "boolean"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
INDEX: dict[str, Any] = {"type": "integer", "minimum": 0}
MAYBE_INT: dict[str, Any] = {"type": ["integer", "null"]}
INT: dict[str, Any] = {"type": "integer"}
ANY: dict[str, Any] = {}
NUMBER: dict[str, Any] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
PAIRS: dict[str, Any] = {"type": "array", "items": {"type": "array", "items": INDEX, "minItems": 2, "maxItems": 2}}
FREE: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of node.

    Attributes:
        make: makes it.
        required: key → its schema.
        optional: the same for keys that may be left out.
        derived: keys that follow from the others.
        one_of: of these keys exactly one is there.
    """

    make: Make
    required: Mapping[str, Any]
    optional: Mapping[str, Any]
    derived: Mapping[str, Any]
    one_of: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, `kind` among them."""
        return ("kind", *self.required, *self.optional, *self.one_of, *self.derived)


def item(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A list of maps with these keys."""
    keys = {**required, **(optional or {})}
    one = {"type": "object", "properties": keys, "required": list(required), "additionalProperties": False}
    return {"type": "array", "items": one, "minItems": 1}


# --- sources -------------------------------------------------------------------------------------------------------

_OPEN = {
    "format": TEXT, "split": MAYBE_TEXT, "flavor": TEXT, "raw": FLAG, "trust": FLAG, "layout": MAYBE_TEXT,
    "vocab_size": MAYBE_INT, "eos_id": MAYBE_INT, "columns": {"type": ["array", "null"], "items": TEXT},
    "read": {"enum": ["auto", "mmap", "pread"]}, "dataset_config": TEXT, "split_config": TEXT,
}  # fmt: skip


def _open(context: Context, node: Mapping[str, Any]) -> Any:
    path = context.beside(node["path"])
    given = {key: value for key, value in node.items() if key not in ("kind", "path")}
    if given.get("trust") and not context.code.trust:
        raise context.untrusted("code that comes with the data", path)
    config = {key: given.pop(key) for key in ("dataset_config", "split_config") if key in given}
    if not config and not context.code.types:
        return context.open_source(path, **given)
    if given.pop("format", "webdataset") != "webdataset":
        return context.open_source(path, **{**given, "format": node["format"]})
    columns = given.pop("columns", None)
    options = OpenOptions(**given, columns=None if columns is None else tuple(columns))
    return open_leaf(path, options.split, **config, sample_types=context.code.types, options=options)


def _take(context: Context, node: Mapping[str, Any]) -> Any:
    return Take(context.source(node), node["start"], node["stop"])


def _subset(context: Context, node: Mapping[str, Any]) -> Any:
    return subset(context.source(node), node["range"])


def _concat(context: Context, node: Mapping[str, Any]) -> Any:
    sources = [context.child(one, f"sources[{place}]") for place, one in enumerate(node["sources"])]
    return Concat(sources, mixed_tokenizers=node.get("mixed_tokenizers", False))


def _join(context: Context, node: Mapping[str, Any]) -> Any:
    names = [one["name"] for one in node["members"]]
    sources = [context.child(one["source"], f"members[{place}]") for place, one in enumerate(node["members"])]
    how = [one.get("how") or "error" for one in node["members"]][1:]
    label = node.get("joiner")
    joiner = None
    if label is not None:
        # What a metadataset names stands in its recipe as it does there, and is called as there.
        theirs = ":" not in label
        joiner = joiner_of(label, context.code, context.path) if theirs else context.code.function(label, context.path)
    given = dict(zip(names, sources, strict=True)) if node.get("named", True) else sources
    rules: Any = dict(zip(names[1:], how, strict=True)) if node.get("named", True) else how
    return Join(given, how=rules, joiner=joiner, name=label)


def _epochs(context: Context, node: Mapping[str, Any]) -> Any:
    children = {
        one["name"]: (context.child(one["of"], f"children.{one['name']}"), number_of(one["repetitions"]))
        for one in node["children"]
    }
    return Epochs(children, first_pass=node.get("first_pass", 0))


def _aux(context: Context, node: Mapping[str, Any]) -> Any:
    stores = {name: context.child(one, f"aux.{name}") for name, one in node["aux"].items()}
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
    image = node.get("decode")
    decode = None if image is None else DecodeOptions(image)
    return Crude(context.source(node), subflavors=node.get("subflavors"), decode=decode)


def _by_length(context: Context, node: Mapping[str, Any]) -> Any:
    lengths, merge = context.code.pair(node["fn"], context.path)
    if lengths is None:
        raise ConfigError("lengths are needed to pack by them", path=context.path, found=node["fn"])
    given = {"too_long": node["too_long"]} if "too_long" in node else {}
    return PackByLength(context.source(node), node["room"], lengths, merge, name=node["fn"], **given)


def _seqax(context: Context, node: Mapping[str, Any]) -> Any:
    own = {key: node[key] for key in _SEQAX if key in node}
    return SeqaxPass(context.source(node), SeqaxParams(**own))


def _windows(packing: Callable[..., Any], *keys: str) -> Make:
    def make(context: Context, node: Mapping[str, Any]) -> Any:
        return packing(**{key: node[key] for key in keys if key in node})(context.source(node))

    return make


# --- streams -------------------------------------------------------------------------------------------------------


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
    children = {one["name"]: context.child(one["stream"], f"children.{one['name']}") for one in node["children"]}
    weights = {one["name"]: number_of(one["weight"]) for one in node["children"]}
    if len(children) < len(node["children"]):
        raise ConfigError(
            "two children have one name", path=context.path, found=[one["name"] for one in node["children"]]
        )
    mixed = node.get("mixed_tokenizers", False)
    return Blend(children, weights, node.get("seed"), lanes=node.get("lanes"), mixed_tokenizers=mixed)


def _stages(context: Context, node: Mapping[str, Any]) -> Any:
    stages = enumerate(node["stages"])
    return Stages([(one.get("length"), context.child(one["stream"], f"stages[{place}]")) for place, one in stages])


def _skip(context: Context, node: Mapping[str, Any]) -> Any:
    return Skip(context.stream(node), [(start, stop) for start, stop in node["ranges"]])


def _balance(context: Context, node: Mapping[str, Any]) -> Any:
    own = {key: node[key] for key in ("steps", "seed") if key in node}
    # By its own name alone: no function makes costs.
    costs = dict(context.code.functions).get(node.get("costs", ""))
    return Balance(context.stream(node), node["world"], costs, **own)


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
        if len(parts) != len(chosen):
            raise ConfigError("choose= has a number for each source", path=context.path, found=chosen)
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
    return context.open_file(context.beside(node["path"]), own)


def number_of(value: Any) -> Any:
    """A weight as it was given: a number, or a fraction as text."""
    try:
        return Fraction(value) if isinstance(value, str) else value
    except ValueError:
        raise ConfigError("this is no number", found=repr(value)) from None


_SEQAX = tuple(SeqaxParams.__dataclass_fields__)
_SOURCE = {"source": NODE}
_STREAM = {"stream": NODE}
_VERSION = {"version": TEXT}
_EITHER = ("source", "stream")
_CHILD = {"name": TEXT, "weight": NUMBER, "stream": NODE}
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

KINDS: dict[str, Kind] = {
    "open": Kind(_open, {"path": TEXT}, _OPEN, {}),
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
        _epochs, {"children": item({"name": TEXT, "repetitions": NUMBER, "of": NODE})}, {"first_pass": INDEX}, _VERSION
    ),
    "aux": Kind(_aux, {"aux": BY_NAME}, {}, {}, _EITHER),
    "map": Kind(_map, {"fn": TEXT}, {}, {}, _EITHER),
    "cook": Kind(_cook, {"cookers": _COOKERS}, {}, {}, _EITHER),
    "crude": Kind(_crude, _SOURCE, {"subflavors": FREE, "decode": MAYBE_TEXT}, {}),
    "chunk": Kind(
        _windows(Chunk, "length", "overlap", "labels", "eos_id"), {"length": COUNT, **_SOURCE},
        {"overlap": INDEX, "labels": _LABELS, "eos_id": MAYBE_INT}, _VERSION,
    ),
    "whole": Kind(_windows(Whole, "length", "pad_id"), {"length": COUNT, **_SOURCE}, {"pad_id": INDEX}, _VERSION),
    "best-fit": Kind(_windows(BestFit, "length", "pad_id"), {"length": COUNT, **_SOURCE}, {"pad_id": INDEX}, _VERSION),
    "megatron-blocks": Kind(
        _windows(MegatronBlocks, "length", "labels"), {"length": COUNT, **_SOURCE}, {"labels": _LABELS}, _VERSION
    ),
    "pack-by-length": Kind(
        _by_length, {"room": COUNT, "fn": TEXT, **_SOURCE}, {"too_long": {"enum": ["error", "alone", "drop"]}}, _VERSION
    ),
    "seqax-pass": Kind(_seqax, _SOURCE, dict.fromkeys(_SEQAX, ANY), _VERSION),
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
        {"seed": MAYBE_INT, "lanes": _MAYBE_COUNT, "mixed_tokenizers": FLAG}, _VERSION,
    ),
    "stages": Kind(_stages, {"stages": item({"stream": NODE}, {"length": _MAYBE_COUNT})}, {}, _VERSION),
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
"""Kind → how it is made."""

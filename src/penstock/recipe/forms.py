"""The keys of recipes' short forms and the schemas of their values, for `short.py` and the JSON schema."""

from __future__ import annotations

from typing import Any

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
from penstock.recipe.schedule import LENGTH, SCHEDULE

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
    """A map with these keys and no others."""
    given = {"required": list(required)} if required else {}
    return {"type": "object", "properties": keys, "additionalProperties": False, **given, **rules}


def _options(kind: str) -> dict[str, Any]:
    """The options of a node of this kind, without its source or stream."""
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
"""What may stand beside any form, in the order in which it is applied."""

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
"""What may stand beside some forms: see `OWN`."""

OF_ITEM: dict[str, Any] = {
    "weight": WEIGHT,
    "repetitions": WEIGHT,
    "name": TEXT,
    "nonmatch": {"enum": ["error", "skip", "none"]},
    "length": LENGTH,
}
"""What a mix says of a node in it: see `ITEM`."""

OF_BATCH: dict[str, Any] = {
    "anyOf": [COUNT, _closed({**dict.fromkeys(BATCH, COUNT), "tail": {"enum": ["pad", "drop"]}})]
}

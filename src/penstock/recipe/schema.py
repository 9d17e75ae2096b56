"""The JSON schema of recipes, made from the tables of kinds and short forms. `recipe.schema.json` is its text."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from penstock.recipe.kinds import (
    ANY,
    COUNT,
    FLAG,
    FREE,
    INDEX,
    KINDS,
    MAYBE_INT,
    MAYBE_TEXT,
    NODE,
    NUMBER,
    PAIRS,
    TEXT,
    Kind,
)  # fmt: skip
from penstock.recipe.recipe import BATCH, VERSION
from penstock.recipe.short import BASES, ITEM, OWN, PACK, WINDOWS

FILE = "recipe.schema.json"

_RANGE: dict[str, Any] = {
    "type": "object",
    "properties": {"range": {"type": "array", "minItems": 2, "maxItems": 2}},
    "required": ["range"],
    "additionalProperties": False,
}
_OPTIONS = {"anyOf": [FLAG, FREE]}
_MODIFIERS: dict[str, Any] = {
    "subset": {"anyOf": [_RANGE, {"type": "array", "items": _RANGE}]},
    "subflavors": FREE,
    "aux": {"type": "object", "additionalProperties": {"anyOf": [TEXT, NODE]}},
    "window": {
        "type": "object",
        "properties": dict.fromkeys(WINDOWS, FREE),
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    },
    "map": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
    "shuffle": _OPTIONS,
    "sequential": _OPTIONS,
    "skip": PAIRS,
    "pack": {
        "type": "object",
        "properties": {**dict.fromkeys(PACK, ANY), "window": COUNT},
        "required": ["window"],
        "additionalProperties": False,
    },
}
_OF_OWN: dict[str, Any] = {
    **KINDS["open"].optional,
    "mode": {"enum": ["train", "val"]},
    "seed": MAYBE_INT,
    "lanes": {"type": ["integer", "null"], "minimum": 1},
    "mixed_tokenizers": FLAG,
    "first_pass": INDEX,
    "joiner": {"anyOf": [MAYBE_TEXT, FREE]},
}
_OF_ITEM: dict[str, Any] = {
    "weight": NUMBER,
    "repetitions": NUMBER,
    "name": TEXT,
    "nonmatch": {"enum": ["error", "skip", "none"]},
    "length": {"type": ["integer", "null"], "minimum": 1},
}


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe file or dict."""
    top = {
        "type": "object",
        "properties": {"penstock": {"const": VERSION}, "stream": NODE, "source": NODE, "batch": _batch()},
        "oneOf": [{"required": ["stream"]}, {"required": ["source"]}],
        "additionalProperties": False,
    }
    nodes = {f"kind:{name}": _kind(name, kind) for name, kind in KINDS.items()}
    short = {f"short:{base}": _short(base) for base in BASES}
    every = [{"$ref": f"#/$defs/{name}"} for name in (*nodes, *short)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock recipe",
        "anyOf": [top, NODE],
        "$defs": {"node": {"oneOf": every}, **nodes, **short},
    }


def schema_text() -> str:
    """The schema as the file holds it."""
    return json.dumps(recipe_schema(), indent=1, sort_keys=True) + "\n"


def read_schema() -> dict[str, Any]:
    """The schema as the package ships it."""
    return json.loads(resources.files("penstock.recipe").joinpath(FILE).read_text("utf-8"))


def _kind(name: str, kind: Kind) -> dict[str, Any]:
    keys = {**kind.required, **kind.optional, **kind.derived, **dict.fromkeys(kind.one_of, NODE)}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"kind": {"const": name}, **keys},
        "required": ["kind", *kind.required],
        "additionalProperties": False,
    }
    if kind.one_of:
        schema["oneOf"] = [{"required": [key]} for key in kind.one_of]
    return schema


def _short(base: str) -> dict[str, Any]:
    if base == "path":
        own: Any = TEXT
    else:
        item = {"type": "object", "properties": {key: _OF_ITEM[key] for key in ITEM.get(base, ())}}
        items = {"type": "array", "items": {"allOf": [item]}, "minItems": 1}
        own = {"anyOf": [items, {"type": "object", "minProperties": 2}]} if base == "join" else items
    keys = {**{key: _OF_OWN[key] for key in OWN[base]}, **_MODIFIERS}
    return {
        "type": "object",
        "properties": {base: own, **keys},
        "required": [base],
        "additionalProperties": False,
    }


def _batch() -> dict[str, Any]:
    keys = {**dict.fromkeys(BATCH, COUNT), "tail": {"enum": ["pad", "drop"]}}
    return {"anyOf": [COUNT, {"type": "object", "properties": keys, "additionalProperties": False}]}

"""JSON schema of recipes, generated from the tables of kinds and short forms, and stored in `recipe.schema.json`."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from penstock.recipe.kinds import KINDS, NODE, PATHS, Kind
from penstock.recipe.short import BASES, ITEM, MODIFIERS, OF_BATCH, OF_ITEM, OF_OWN, OWN, VERSION

FILE = "recipe.schema.json"


def recipe_schema() -> dict[str, Any]:
    top = {
        "type": "object",
        "properties": {"penstock": {"const": VERSION}, "stream": NODE, "source": NODE, "batch": OF_BATCH},
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
    """Return the text of `recipe.schema.json`."""
    return json.dumps(recipe_schema(), indent=1, sort_keys=True) + "\n"


def read_schema() -> dict[str, Any]:
    """Return the schema in the package."""
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
        own: Any = PATHS
    else:
        item = {"type": "object", "properties": {key: OF_ITEM[key] for key in ITEM.get(base, ())}}
        items = {"type": "array", "items": {"allOf": [item]}, "minItems": 1}
        own = {"anyOf": [items, {"type": "object", "minProperties": 2}]} if base == "join" else items
    keys = {**{key: OF_OWN[key] for key in OWN[base]}, **MODIFIERS}
    return {
        "type": "object",
        "properties": {base: own, **keys},
        "required": [base],
        "additionalProperties": False,
    }

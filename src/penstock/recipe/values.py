"""Checks of plain values: strict maps, and the part of JSON schema that recipes use, with readable messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

from penstock.errors import ConfigError

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_WORDS = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "null",
}

_ENDLESS = re.compile(r"[eE][+-]?\d{4}")
"""A number with an exponent so large that its power of ten mustn't be computed: 1e99999999."""

WEIGHT: dict[str, Any] = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}]}


def check_value(value: Any, schema: Mapping[str, Any], what: str, path: str | None) -> None:
    """Raise an error if the schema doesn't allow a value. Nested nodes aren't checked here, but when they are built."""
    if "$ref" in schema:
        return
    if "anyOf" in schema:
        _check_any(value, schema["anyOf"], what, path)
        return
    if "enum" in schema and value not in schema["enum"]:
        raise unknown(str(value), [str(one) for one in schema["enum"]], f"unknown value for {what}", path)
    allowed = schema.get("type", [])
    names = [allowed] if isinstance(allowed, str) else list(allowed)
    if names and not any(_is(value, name) for name in names):
        raise _wrong(value, " or ".join(_WORDS[name] for name in names), what, path)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(value, schema, what, path)
    elif isinstance(value, str) and len(value) < schema.get("minLength", 0):
        raise _wrong(value, "a string that isn't empty", what, path)
    elif isinstance(value, (list, tuple)):
        _check_items(value, schema, what, path)
    elif isinstance(value, dict) and "properties" in schema:
        _check_map(value, schema, what, path)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _check_any(value: Any, schemas: Any, what: str, path: str | None) -> None:
    # An error inside a map is reported by the alternative that is a map.
    fitting = [schema for schema in schemas if _fits(value, schema)]
    errors: list[ConfigError] = []
    for schema in fitting or schemas:
        try:
            check_value(value, schema, what, path)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    allowed = schema.get("type", [])
    return any(_is(value, name) for name in ([allowed] if isinstance(allowed, str) else allowed))


def _check_number(value: float, schema: Mapping[str, Any], what: str, path: str | None) -> None:
    if value < schema.get("minimum", value):
        raise _wrong(value, f"{schema['minimum']} or more", what, path)
    if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
        raise _wrong(value, f"more than {schema['exclusiveMinimum']}", what, path)


def _check_items(value: Any, schema: Mapping[str, Any], what: str, path: str | None) -> None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        raise _wrong(value, f"{least} items" if least == most else f"{least} or more items", what, path)
    first: list[Any] = schema.get("prefixItems", [])
    for place, one in enumerate(value):
        own = first[place] if place < len(first) else schema.get("items", {})
        check_value(one, own, f"{what}[{place}]", path)


def _check_map(value: dict[str, Any], schema: Mapping[str, Any], what: str, path: str | None) -> None:
    known = schema["properties"]
    for key, one in value.items():
        if key not in known:
            raise unknown(str(key), list(known), f"{what} has an unknown key", path)
        check_value(one, known[key], f"{what}.{key}", path)
    missing = [key for key in schema.get("required", ()) if key not in value]
    if missing:
        raise ConfigError(f"{what} lacks {', '.join(missing)}", path=path, found=", ".join(map(str, value)))


def _wrong(value: Any, expected: str, what: str, path: str | None) -> ConfigError:
    return ConfigError(f"invalid value for {what}", path=path, found=repr(value)[:80], expected=expected)


def number_of(value: Any) -> Any:
    """Return a weight as it was passed: a number, or a fraction as text."""
    try:
        if isinstance(value, str) and _ENDLESS.search(value):
            raise ValueError
        return Fraction(value) if isinstance(value, str) else value
    except ValueError:
        raise ConfigError("not a number", found=repr(value)[:80]) from None


def check_map(value: Any, what: str, path: str | None) -> dict[str, Any]:
    """Return `value`, checked to be a map with text keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{what} is not a mapping", path=path, found=repr(value)[:80], expected="keys and values")
    return value


def check_list(value: Any, what: str, path: str | None) -> list[Any]:
    """Return `value`, checked to be a list that isn't empty."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{what} is not a list", path=path, found=repr(value)[:80], expected="a list of one or more")
    return value


def check_keys(value: dict[str, Any], known: Collection[str], what: str, path: str | None) -> None:
    for key in value:
        if key not in known:
            raise unknown(key, known, f"{what} has an unknown key", path)


def unknown(name: str, known: Collection[str], what: str, path: str | None) -> ConfigError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}?" if close else None
    return ConfigError(what, path=path, found=repr(name), expected=", ".join(known) or "none", hint=hint)


def check_text(value: Any, what: str, path: str | None) -> str:
    """Return `value`, checked to be a text that isn't empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is not a string", path=path, found=repr(value)[:80])
    return value

"""Field maps: which parts of a stored sample the fields of a typed sample come from.

    value  := option ("," option)*           the first available option
    option := name ("[" key "]")*            the part `name`, then items of its value: of a dict by key, of a list by
    number

Names and keys contain neither `[` nor `]`, and are used literally, with blanks. If an option doesn't match, the whole
value is one name. Checked against megatron-energon 7.4.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from penstock.errors import ConfigError, Corrupt

Access: TypeAlias = tuple[tuple[str, ...], ...]
"""Options, the preferred one first: each is the name of a part and the keys into its value."""

FieldMap: TypeAlias = Mapping[str, Access]
"""Field of the typed sample → its options."""

_OPTION = re.compile(r"[^\[\]]+(\[[^\[\]]+\])*", re.DOTALL)
_MISSES = (KeyError, IndexError, ValueError, TypeError)


def parse_access(text: str) -> Access:
    return tuple(_parse_option(option, text) for option in text.split(","))


def parse_field_map(fields: object, path: str | None = None) -> dict[str, Access]:
    """Parse a field map in the form of `dataset.yaml`.

    Raises:
        ConfigError: the field map isn't a mapping of texts.
    """
    if not isinstance(fields, Mapping):
        raise ConfigError(
            "the field map is not a mapping", path=path, found=type(fields).__name__, expected="field: part"
        )
    for name, text in fields.items():
        if not isinstance(text, str):
            found = f"{name}: {text!r}"
            raise ConfigError(
                "a value in the field map is not a string", path=path, found=found, expected="such as json[caption]"
            )
    return {str(name): parse_access(text) for name, text in fields.items()}


def parts_of(fields: FieldMap) -> frozenset[str]:
    """Return the names of the parts that a field map may read."""
    return frozenset(option[0] for access in fields.values() for option in access)


def apply(fields: FieldMap, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one sample.

    Raises:
        Corrupt: the sample lacks a field; the message names it.
    """
    return {name: find(access, parts, name) for name, access in fields.items()}


def find(access: Access, parts: Mapping[str, Any], name: str = "") -> Any:
    """Return the value of the first available option.

    Raises:
        Corrupt: no option is available.
    """
    for option in access:
        try:
            return _walk(option, parts)
        except _MISSES:
            continue
    have = ", ".join(part for part in parts if not part.startswith("__")) or "no part"
    raise Corrupt(
        f"the sample has no value for the field {name!r}" if name else "the sample lacks a value",
        found=have,
        expected=" or ".join(map(_show, access)),
        hint="Fix the sample, or the field map in dataset.yaml",
    )


def _parse_option(option: str, text: str) -> tuple[str, ...]:
    if not _OPTION.fullmatch(option):
        return (text,)
    name, *keys = option.replace("]", "").split("[")
    return (name, *keys)


def _walk(option: tuple[str, ...], parts: Mapping[str, Any]) -> Any:
    value: Any = parts[option[0]]
    for key in option[1:]:
        if isinstance(value, dict):
            value = value[key]
        elif isinstance(value, list):
            value = value[int(key)]
        else:
            raise TypeError(f"can't look up a key in a {type(value).__name__}")
    return value


def _show(option: tuple[str, ...]) -> str:
    return option[0] + "".join(f"[{key}]" for key in option[1:])

"""Strict maps: an unknown key is refused, and the nearest known one is named."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from penstock.errors import ConfigError


def check_map(value: Any, what: str, path: str | None) -> dict[str, Any]:
    """`value`, which is a map with text as keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{what} is not a mapping", path=path, found=repr(value)[:80], expected="keys and values")
    return value


def check_list(value: Any, what: str, path: str | None) -> list[Any]:
    """`value`, which is a list that is not empty."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{what} is not a list", path=path, found=repr(value)[:80], expected="a list of one or more")
    return value


def check_keys(value: dict[str, Any], known: Collection[str], what: str, path: str | None) -> None:
    """Refuse a key that is not known."""
    for key in value:
        if key not in known:
            raise unknown(key, known, f"{what} has an unknown key", path)


def unknown(name: str, known: Collection[str], what: str, path: str | None) -> ConfigError:
    """The error for a name that does not exist."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}?" if close else None
    return ConfigError(what, path=path, found=repr(name), expected=", ".join(known) or "none", hint=hint)


def check_text(value: Any, what: str, path: str | None) -> str:
    """`value`, which is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is not a string", path=path, found=repr(value)[:80])
    return value

"""Checks of plug-in formats against the format protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._optional import imported, unusable
from penstock.abc import Format

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OF_ALL = ("name", "traits", "sniff", "open")
_BY_TRAIT = {"write": "create", "verify": "check", "repair": "repair"}
"""Trait → the method that it requires."""


def of_plug_in(point: EntryPoint) -> Format:
    """Return the format of an entry point; raise `ConfigError` if it can't be imported or has another name."""
    found = imported(point)
    promised = [name for trait, name in _BY_TRAIT.items() if getattr(getattr(found, "traits", None), trait, False)]
    missing = [name for name in (*_OF_ALL, *promised) if not hasattr(found, name)]
    if missing:
        raise unusable(point, f"is not a format: {point.value} has no {', '.join(missing)}")
    if found.name != point.name:
        raise unusable(point, f"has the name {found.name!r}: the entry point and FORMAT.name must be the same")
    return found

"""Plug-ins of other packages: found by entry points, and imported at first use."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plug_ins(group: str, own: Collection[str]) -> dict[str, EntryPoint]:
    """Return name → entry point, without built-in names."""
    from importlib.metadata import entry_points  # slow, and only needed for plug-ins

    return {point.name: point for point in entry_points(group=group) if point.name not in own}


def imported(point: EntryPoint) -> Any:
    """Return the object of an entry point; raise a `ConfigError` that names its package if the import fails."""
    try:
        return point.load()
    except PenstockError:
        raise
    except Exception as error:
        raise unusable(point, f"can't be imported ({type(error).__name__}: {error})") from error


def unusable(point: EntryPoint, why: str) -> ConfigError:
    """Return the error for an invalid plug-in, with its package and how to remove it."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    hint = f"Fix it, or remove it: pip uninstall {point.dist.name}" if point.dist else "Fix it, or remove it"
    return ConfigError(f"the plug-in {point.name!r}{package} {why}", hint=hint)

"""What other packages add by entry points: found by its name, and imported when it is used."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plug_ins(group: str, own: Collection[str]) -> dict[str, EntryPoint]:
    """Name → entry point, without the names that are our own."""
    from importlib.metadata import entry_points  # slow, and needed for plug-ins alone

    return {point.name: point for point in entry_points(group=group) if point.name not in own}


def imported(point: EntryPoint) -> Any:
    """What an entry point names; raises `ConfigError` that names its package where it can't be imported."""
    try:
        return point.load()
    except PenstockError:
        raise
    except Exception as error:
        raise unusable(point, f"can't be imported ({type(error).__name__}: {error})") from error


def unusable(point: EntryPoint, why: str) -> ConfigError:
    """The error of a plug-in that is not as it has to be: whose it is, and how to be rid of it."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    hint = f"Fix it, or remove it: pip uninstall {point.dist.name}" if point.dist else "Fix it, or remove it"
    return ConfigError(f"the plug-in {point.name!r}{package} {why}", hint=hint)

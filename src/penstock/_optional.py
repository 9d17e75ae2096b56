"""Packages that may be missing: optional ones, whose error names the extra, and plug-ins, found by entry points."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MissingExtra, PenstockError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


DISTRIBUTION = "penstock-data"
"""Name of this project on the package index. `penstock` is the name of an unrelated project there."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)(?P<versions>[^;\[]*);.*\bextra == ['\"](?P<extra>[a-z0-9_-]+)['\"]"
)


def require(module: str, *, extra: str) -> Any:
    """Import `module`, or raise an error with the install command.

    Args:
        module: dotted module name, such as `"tokenizers"`.
        extra: the extra of this distribution that installs it.

    Raises:
        MissingExtra: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        package = module.partition(".")[0]
        packages = extras().get(extra) or {package: ""}
        # A version is only given if a newer one doesn't work.
        wanted = (name + versions if "<" in versions else name for name, versions in packages.items())
        raise MissingExtra(
            f"the package {package!r} is needed but not installed",
            hint=f"Install the extra {extra!r} with: pip install {shlex.join(wanted)}",
        ) from error


def extras() -> dict[str, dict[str, str]]:
    """Return each extra's packages with their version ranges; empty if Penstock runs without being installed."""
    from importlib import metadata  # slow to import, and only needed here

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    packages: dict[str, dict[str, str]] = {}
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        packages.setdefault(match["extra"], {})[match["name"]] = match["versions"].strip()
    return packages


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

"""Optional packages: import one, or raise an error that names the extra and the packages it brings."""

from __future__ import annotations

import importlib
import re
import shlex
from typing import Any

from penstock.errors import MissingExtra

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

"""Packages that some of the original's classes need, and that none of our extras brings."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import MissingExtra


def package(module: str, instead: str | None = None) -> Any:
    """Import a module.

    Args:
        module: dotted name.
        instead: alternative to the installation, for the hint.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        hint = f"pip install {name}" + (f", or {instead}" if instead else "")
        raise MissingExtra(f"the package {name!r} is needed but not installed", hint=hint) from error

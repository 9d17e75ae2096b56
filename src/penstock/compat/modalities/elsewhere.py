"""Names of Modalities' that don't exist here, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def elsewhere(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a module: raises an ImportError that says what to use instead of a name.

    Args:
        module: its name.
        names: name → what to use.
    """

    def find(name: str) -> Any:
        if name in names:
            raise ImportError(f"{module} has no {name}. Use {names[name]}", name=name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=None)

    return find


def of_modalities(module: str, *names: str) -> Callable[[str], Any]:
    """The same for names that are no work of ours: Modalities' own go on working beside ours."""
    original = module.removeprefix("penstock.compat.")
    return elsewhere(module, dict.fromkeys(names, f"the one of {original}, which works with these classes"))

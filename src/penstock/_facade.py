"""Packages with names imported at first use, each listed once: by the imports for type checkers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any


def facade(
    package: str, *, modules: bool = False, names: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package with lazily imported names (PEP 562).

    Use it as `__getattr__, __dir__ = facade(__name__)`. The names are those that the package imports under
    `if TYPE_CHECKING:`. `__all__` has them sorted.

    Args:
        package: dotted name.
        modules: its modules are attributes too, as of a package that imports them all.
        names: name → (module, its name there), for a module without a source file.
    """

    @cache
    def where() -> dict[str, tuple[str, str]]:
        return names_of(package) if names is None else dict(names)

    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(where())
        if modules and not name.startswith("_") and name not in where() and (module := _module(package, name)):
            return module
        if name.startswith("__") or name not in where():  # requests of the import system needn't be looked up
            from penstock._naming import nearest  # 5 ms, as the imports below

            close = None if name.startswith("__") else nearest(name, where())
            hint = f"; did you mean {close!r}?" if close else ""
            # With a separate object, because a traceback of Python would repeat the suggestion.
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name, obj=None)
        module, attribute = where()[name]
        if module == package:  # one of its own modules
            return importlib.import_module(f"{package}.{attribute}")
        found = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, found)  # some are requested once per sample
        return found

    return find, lambda: sorted(where())


def modules_of(package: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a package with modules as attributes, imported at first use: `modules_of(__name__)`."""

    def find(name: str) -> Any:
        module = None if name.startswith("_") else _module(package, name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=None)
        return module

    return find


def _module(package: str, name: str) -> Any:
    """Return the package's module of that name, if it exists."""
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
        return None


def names_of(package: str) -> dict[str, tuple[str, str]]:
    """Return name → (module, its name there), from the imports for type checkers."""
    import ast
    import importlib.util

    spec = importlib.util.find_spec(package)
    loader: Any = spec.loader if spec else None
    found: dict[str, tuple[str, str]] = {}
    for block in ast.parse(loader.get_source(package)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    found |= {one.asname or one.name: (line.module, one.name) for one in line.names}
    return found

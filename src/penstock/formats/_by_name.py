"""Import of `penstock.formats.<name>`: a format's module by its name, whatever family it belongs to.

`import penstock.formats.pbin` returns the module `penstock.formats.tokens.pbin` itself, and likewise its submodules, so
no module exists twice. Programs and pickled sources don't need to know the families.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PARENT = "penstock.formats."


class ByName(MetaPathFinder):
    """Finder of format modules under `penstock.formats`.

    Args:
        modules: format name → module; one that is there by its name alone needs no other.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        by_name = {name.replace("-", "_"): module for name, module in modules.items()}
        self._modules = {name: module for name, module in by_name.items() if module != _PARENT + name}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PARENT):
            return None
        name, dot, inner = fullname.removeprefix(_PARENT).partition(".")
        module = self._modules.get(name)
        return None if module is None else ModuleSpec(fullname, _Same(module + dot + inner))


class _Same(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def find_by_name(modules: Mapping[str, str]) -> None:
    """Install the finder of formats by their names; a second call changes nothing."""
    if not any(isinstance(one, ByName) for one in sys.meta_path):
        sys.meta_path.insert(0, ByName(modules))  # before the finder that would load a module a second time

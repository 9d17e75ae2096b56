"""Parts of the registry: import by name, plug-ins, read-only formats, and replacements by killed writers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from penstock._optional import imported, unusable
from penstock.abc import Format
from penstock.errors import Unsupported
from penstock.store.base import Store
from penstock.store.outputs import Owned, sweep_complete, sweep_killed
from penstock.types import Action, Finding, OpenOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PARENT = "penstock.formats."


class ByName(MetaPathFinder):
    """Finder of format modules by the name of the format, without that of its family.

    `import penstock.formats.pbin` returns the module `penstock.formats.tokens.pbin` itself, and likewise for its
    submodules, so no module exists twice, and pickles don't depend on the families.

    Args:
        modules: format name → module.
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


_INSTEAD = "Samples are written as mds, json-shards, jsonl or webdataset; tokens as pbin or megatron"


class _Named(Protocol):
    name: str


def instead_of(this: object) -> str:
    """Return a sentence about how datasets of a format without a writer are made."""
    return getattr(this, "instead", _INSTEAD)


def refuse_to_create(this: _Named, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> NoReturn:
    """Raise `Unsupported`, as the `create` of a read-only format."""
    raise Unsupported(f"the format {this.name!r} is read-only", path=path, hint=instead_of(this))


def repair_nothing(
    _this: _Named, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
) -> list[Action]:
    """Return no actions, as the `repair` of a format in which nothing can be rebuilt from the rest."""
    return []


def finish_replacement(chosen: Format, store: Store, path: str, files: Sequence[str], own: Owned | None) -> None:
    """Complete the replacement, for data that the same command doesn't write again.

    Args:
        chosen: format of the data.
        store: store of the data.
        path: path of the data.
        files: files of the data.
        own: function that returns the files of a folder that belong to the data.

    Raises:
        PrepareError: the writer is still running.
    """
    sweep_killed(store, files)
    if not store.is_local:  # replacements have no steps there between which a kill could fall
        return
    if chosen.traits.repair:
        chosen.repair(store, path, OpenOptions(), (), write=True)
    sweep_complete(store, files, own)
    for file in files if own is None else ():
        store.stage(file, overwrite=True).abort()  # the next writer removes what wasn't visible yet

"""Functions and types named by files: registered by the caller, or imported if trusted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, UnsafeData
from penstock.formats.samples.webdataset.sample_types import SampleType, find_type, type_of_class
from penstock.recipe.values import check_keys, check_map, check_text

_HEAD = ("__key__", "__restore_key__", "__subflavors__")


@dataclass(frozen=True, slots=True)
class Code:
    """Functions and types that a file may name.

    Attributes:
        functions: `module.name` or `module:name` → function; a pair of functions for packing on the fly.
        types: `module.Class` → type of samples.
        trust: import names that are in neither mapping, which runs their modules' code.
        follow_links: read datasets through links that lead out of their directories.
    """

    functions: Mapping[str, Any]
    types: Mapping[str, SampleType]
    trust: bool
    follow_links: bool = False

    def function(self, name: str, path: str | None) -> Any:
        """Return the function called `module:qualname`.

        Raises:
            UnsafeData: it isn't registered, and imports aren't allowed.
            ConfigError: the function doesn't exist.
        """
        known = self.functions.get(name, self.functions.get(name.replace(":", ".")))
        if known is not None:
            return known
        if not self.trust:
            raise UnsafeData(
                "unknown function: importing its module would run its code",
                path=path,
                found=name,
                expected=", ".join(self.functions) or "a registered function",
                hint=f"Register it with {{{name!r}: fn}}, or pass trust=True",
            )
        return _imported(name, path)

    def pair(self, names: str, path: str | None) -> tuple[Any, Any]:
        """Return the two functions of `"select merge"`, `-` for none; or the pair registered under the whole name."""
        known = self.functions.get(names)
        if known is not None:
            return known if isinstance(known, tuple) else (known, None)
        parts = names.split(" ")
        if len(parts) != 2:
            raise ConfigError(
                "two functions are needed", path=path, found=names, expected="select and merge, - for none",
                hint=f"Register the pair with {{{names!r}: (first, second)}}",
            )  # fmt: skip
        first, second = (None if name == "-" else self.function(name, path) for name in parts)
        return first, second


def make_code(
    functions: Mapping[str, Any] | None, sample_types: Mapping[str, Any] | None, trust: bool, follow_links: bool = False
) -> Code:
    """Return the functions and types that files may name, from the caller's arguments."""
    types = {
        name.replace(":", "."): one if isinstance(one, SampleType) else type_of_class(one)
        for name, one in (sample_types or {}).items()
    }
    return Code({} if functions is None else functions, types, trust, follow_links)


FROM_JOINED = ".from_joined"
"""Suffix of the name of a joining class: Energon calls this method of it."""


def joiner_name(value: Any, what: str, path: str | None) -> str:
    """Return the `joiner_of` name for a file's reference by module, and class or function."""
    if value is None:
        raise ConfigError("a join needs a joiner", path=path, expected="{__module__: …, __function__: …}")
    item = check_map(value, what, path)
    check_keys(item, ("__module__", "__class__", "__function__"), what, path)
    named = [key for key in ("__class__", "__function__") if key in item]
    if len(named) != 1 or "__module__" not in item:
        raise ConfigError(
            f"{what} must set a module, and a class or a function", path=path, found=", ".join(item) or "nothing"
        )
    module = check_text(item["__module__"], f"{what}.__module__", path)
    name = check_text(item[named[0]], f"{what}.{named[0]}", path)
    return f"{module}.{name}{FROM_JOINED if named[0] == '__class__' else ''}"


def joiner_of(name: str, code: Code, path: str | None) -> Callable[..., Any]:
    """Return the function that creates joined samples.

    Args:
        name: name of a function, or of a class with `.from_joined`: its method of that name, or by default its fields.
        code: the functions and types that may be named.
        path: path of the file, for errors.
    """
    if not name.endswith(FROM_JOINED):
        return Joiner(code.function(name, path))
    name = name.removesuffix(FROM_JOINED)
    known = code.functions.get(name)
    if known is not None:
        return _of_class(known)
    if name in code.types:
        return Merge(code.types[name])
    module, _, kind = name.rpartition(".")
    try:
        return Merge(find_type(module, kind, trust=False, path=path or ""))
    except UnsafeData:
        if not code.trust:
            raise
    return _of_class(_imported(name, path))


def _of_class(known: Any) -> Callable[..., Any]:
    from_joined = getattr(known, "from_joined", None)
    if from_joined is not None:
        return Joiner(from_joined)
    return Merge(type_of_class(known)) if isinstance(known, type) else Joiner(known)


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joiner function; its samples keep the first member's key and subflavors."""

    fn: Callable[..., Any]

    def __call__(self, *members: Any, **named: Any) -> Any:
        given = map(_member, members)
        made = self.fn(*given, **{name: _member(one) for name, one in named.items()})
        if not isinstance(made, dict):
            return made
        return {**_head((*members, *named.values())), **made}


class Member(dict[str, Any]):
    """A member's sample for a joiner: fields are also attributes, as in Energon's samples."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the sample has no field {name!r}, only {', '.join(self)}") from None


def _member(sample: Any) -> Any:
    return Member(sample) if isinstance(sample, dict) else sample


@dataclass(frozen=True, slots=True)
class Merge:
    """Joiner that merges the fields of all members into a type; later members win."""

    sample_type: SampleType

    def __call__(self, *members: Any, **named: Any) -> dict[str, Any]:
        there = [one for one in (*members, *named.values()) if one is not None]
        fields = {key: value for one in there for key, value in one.items() if key in self.sample_type.fields}
        missing = [name for name in self.sample_type.required if name not in fields]
        if missing:
            raise ConfigError(f"no member has {', '.join(missing)} of {self.sample_type.name}")
        return {**_head(there), **self.sample_type.defaults, **fields}


def _head(members: Any) -> dict[str, Any]:
    """Return a joined sample's key and subflavors, of the first member, and sources, of all."""
    there = [one for one in members if isinstance(one, dict)]
    if not there:
        return {}
    head = {name: there[0][name] for name in _HEAD if name in there[0]}
    sources = tuple(source for one in there for source in one.get("__sources__") or ())
    return {**head, "__sources__": sources} if sources else head


def _imported(name: str, path: str | None) -> Any:
    module, colon, qualname = name.partition(":")
    if not colon:
        module, _, qualname = name.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("unknown function", path=path, found=name, hint=str(error)) from None
    if not callable(found):
        raise ConfigError("not a function", path=path, found=name)
    return found

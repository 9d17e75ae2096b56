"""Logs arguments of the originals that have no effect in Penstock, and refuses overrides that it never calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import getattr_static
from typing import Any

from penstock._secrets import logger
from penstock.errors import ConfigError

_log = logger()


def say_unused(owner: str, because: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Log which given arguments have no effect here.

    Args:
        owner: the function or class that they were given to.
        because: what applies instead.
        given: argument → value.
        defaults: argument → value that needs no message; None never does.
    """
    asked = [f"{name}={value!r}" for name, value in given.items() if value is not None and value != defaults.get(name)]
    if asked:
        _log.warning("%s: %s has no effect: %s", owner, ", ".join(asked), because)


def refuse_overrides(cls: type[Any], base: type[Any], hooks: Iterable[str], hint: str) -> None:
    """Reject a subclass that overrides methods that the original calls but Penstock doesn't.

    Args:
        cls: the subclass.
        base: its base class in Penstock.
        hooks: names of such methods.
        hint: hint of the error.

    Raises:
        ConfigError: the subclass overrides one of them.
    """
    found = [name for name in hooks if getattr_static(cls, name, None) is not getattr_static(base, name, None)]
    if found:
        what = f"{cls.__name__} overrides a method that is never called here"
        raise ConfigError(what, found=", ".join(found), hint=hint)

"""Which of several nodes an error is about."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import ConfigError


@contextmanager
def naming(what: str, node: Any = None) -> Generator[None]:
    """Say in an error about a node which one it is, and where its data lie as far as that is known."""
    try:
        yield
    except ConfigError as error:
        error.what = f"{what}: {error.what}" if what else error.what
        error.path = error.path or _path_of(node)
        raise


def _path_of(node: Any) -> str | None:
    """Where the data of a node lie, through what is made of one thing alone."""
    children: Mapping[str, Any] = node.children() if node is not None else {}
    if len(children) == 1:
        return _path_of(next(iter(children.values())))
    return None if node is None or children else node.recipe().get("path")

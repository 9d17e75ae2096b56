"""Names of nodes in errors, and of functions in fingerprints."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import ConfigError

_NEAR = 0.7


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, if any is similar enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)), None)


@contextmanager
def naming(what: str, node: Any = None) -> Generator[None]:
    """Add the name of a node to errors, and the location of its data if known."""
    try:
        yield
    except ConfigError as error:
        error.what = f"{what}: {error.what}" if what else error.what
        error.path = error.path or _path_of(node)
        raise


def _path_of(node: Any) -> str | None:
    """Return the location of a node's data, through nodes with a single child."""
    children: Mapping[str, Any] = node.children() if node is not None else {}
    if len(children) == 1:
        return _path_of(next(iter(children.values())))
    return None if node is None or children else node.recipe().get("path")


def function_name(
    fn: Callable[..., Any],
    what: str = "the function",
    hint: str = "Pass name=, and change it when the function's results change",
) -> str:
    """Return `module:qualname`, which identifies a function in states and fingerprints.

    Raises:
        ConfigError: it has no name of its own: a partial, an object. The message contains `what` and `hint`.
    """
    qualname: str | None = getattr(fn, "__qualname__", None)
    if qualname is None:
        raise ConfigError(
            f"{what} needs a name, so that a saved state can identify it", found=type(fn).__name__, hint=hint
        )
    return f"{fn.__module__}:{qualname}"

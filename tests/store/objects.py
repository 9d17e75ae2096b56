"""What lies in an object store, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.internals import Objects, object_key
from tests.internals import resolve_remote as resolve


def objects(url: str) -> dict[str, bytes]:
    """All that is there, hidden objects too."""
    store, root = resolve(url)
    remote: Any = getattr(store, "remote", store)
    keys = Objects(remote.base, remote.options).list(object_key(remote, root), first_only=False)
    prefix = object_key(remote, root) + "/"
    return {key.removeprefix(prefix): bytes(remote.get(f"{remote.base}/{key}")) for key in keys}


def counted_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that are made from now on, by their kind."""
    made: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(Objects, name)

        def call(self: Objects, *given: Any, **named: Any) -> Any:
            made.append(name)
            return original(self, *given, **named)

        return call

    for name in ("head", "heads", "read", "list", "put", "copy", "delete"):
        monkeypatch.setattr(Objects, name, counted(name))
    return made

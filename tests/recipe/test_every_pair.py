"""Every kind of node below every other one: it opens, or a typed error says why it can't."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.recipe import open_recipe

from .test_recipe import NAMED, NODES, data  # noqa: F401  # pyright: ignore[reportUnusedImport]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """`(map or list, key)` of each node directly below one."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(one, dict) and "kind" in one:
            yield value, key
        else:
            yield from places(one)


@pytest.fixture(scope="module")
def nodes(data: Path) -> dict[str, Any]:  # noqa: F811
    return {name: make(data).recipe() for name, make in NODES.items()}


@pytest.mark.parametrize("above", NODES)
def test_opens_or_says_why(above: str, nodes: dict[str, Any]) -> None:
    """Any other exception would be told as a fault of ours."""
    for number in range(len(list(places(nodes[above])))):
        for below in nodes.values():
            changed = copy.deepcopy(nodes[above])
            holder, key = list(places(changed))[number]
            holder[key] = below
            with contextlib.suppress(PenstockError):
                assert open_recipe(changed, functions=NAMED).schema is not None

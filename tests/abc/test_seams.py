"""The package of seams: all that its modules make is delivered, has its laws written down, and can be asked for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, Protocol

import pytest

import penstock.abc as seams

MODULES = [f"penstock.abc.{one.name}" for one in pkgutil.iter_modules(seams.__path__)]


def made_in(name: str) -> dict[str, Any]:
    found = vars(importlib.import_module(name))
    return {key: value for key, value in found.items() if getattr(value, "__module__", None) == name and len(key) > 4}


POWERS = {name for name in seams.__all__ if name.startswith("Supports")}


def test_what_may_be_added_stands_by_itself_and_says_what_is_gained() -> None:
    assert made_in("penstock.abc.powers").keys() == POWERS
    for name in POWERS:
        assert "Gain: " in str(inspect.getdoc(getattr(seams, name))), name


def test_the_guide_lists_each_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/plugins.md").read_text()
    assert [name for name in seams.__all__ if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", MODULES)
def test_everything_is_handed_out(name: str) -> None:
    made = made_in(name)
    assert made
    assert made.keys() <= set(seams.__all__)
    assert all(getattr(seams, key) is value for key, value in made.items())


def test_the_names_are_sorted_and_there() -> None:
    assert list(seams.__all__) == sorted(set(seams.__all__))
    assert all(hasattr(seams, name) for name in seams.__all__)


@pytest.mark.parametrize("name", [name for name in seams.__all__ if inspect.isclass(getattr(seams, name))])
def test_each_seam_is_a_protocol_with_its_laws(name: str) -> None:
    seam = getattr(seams, name)
    assert issubclass(seam, Protocol)  # type: ignore[arg-type]
    assert inspect.getdoc(seam)
    if name.startswith("Supports") and name != "SupportsBlocks":  # that one is read where it is there, never asked for
        assert not isinstance(object(), seam)

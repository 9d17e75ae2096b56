"""Both themes are defined once, and every colour that a face asks for is one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.view

VIEW = Path(penstock.view.__file__).parent
COLOURS, BLOCKS = VIEW / "static" / "colours.css", VIEW / "static" / "blocks.css"
FACES = (BLOCKS, VIEW / "static" / "report.css", VIEW / "pages" / "static" / "style.css", VIEW / "notebook.py")


def defined(path: Path) -> set[str]:
    return set(re.findall(r"(--[\w-]+):", path.read_text()))


@pytest.mark.parametrize("face", FACES, ids=lambda path: path.name)
def test_a_face_has_no_colours_of_its_own(face: Path) -> None:
    rules = face.read_text().partition("@media print")[0]  # paper is white
    assert "light-dark" not in rules
    assert "prefers-color-scheme" not in rules
    assert not defined(COLOURS) & set(re.findall(r"(--[\w-]+):", rules))
    assert set(re.findall(r"var\((--[\w-]+)", face.read_text())) <= defined(COLOURS) | defined(BLOCKS) | defined(face)


def test_each_colour_is_one_of_both_themes() -> None:
    for name, value in re.findall(r"(--[\w-]+): ([^;]+);", COLOURS.read_text()):
        assert re.fullmatch(r"light-dark\(#\w{6}, #\w{6}\)", value) or name in ("--sans", "--mono"), name

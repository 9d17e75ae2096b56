"""How much of anything is shown, in one place. What is cut says how much there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_SAMPLE_BYTES = 1 << 26
"""A sample that is stored in more bytes is not read whole: its parts are listed, and their beginnings are shown."""

MOST_JSON_BYTES = 1 << 24
"""The same of a line of JSON, whose values may take twenty times its bytes."""

_JSON_FORMATS = frozenset(("jsonl", "jsonl-files"))

MOST_PIXELS = 1 << 26
"""An image of more pixels is never decoded; its size is in its header."""

MOST_ERROR_CHARACTERS = 2000
MOST_NAME_CHARACTERS = 200


def most_sample_bytes(formats: Iterable[str]) -> int:
    """Stored bytes of a sample that is read whole, where data are of these formats."""
    return MOST_SAMPLE_BYTES if _JSON_FORMATS.isdisjoint(formats) else MOST_JSON_BYTES


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is shown of a sample.

    A sample's panels take at most some 20 bytes for each character and node of these: 3 MB in a list, 60 MB in full.

    Attributes:
        panels: parts of a sample.
        characters: of a text.
        nodes: values of a JSON document, and of objects in it.
        deep: of them, inside of one another.
        items: numbers of an array, ids of a document.
        shown_bytes: of a part that is no text.
    """

    panels: int = 64
    characters: int = 2000
    nodes: int = 200
    deep: int = 12
    items: int = 256
    shown_bytes: int = 256


IN_LIST = Bounds()
"""For one sample of many."""

IN_FULL = Bounds(panels=500, characters=1 << 20, nodes=5000, deep=40, items=1 << 14, shown_bytes=1 << 14)
"""For one sample on a page of its own."""

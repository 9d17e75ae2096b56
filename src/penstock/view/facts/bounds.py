"""Limits on everything that is shown. Cut values include their full size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_SAMPLE_BYTES = 1 << 26
"""Samples stored in more bytes aren't read whole: their parts are listed with their beginnings."""

MOST_JSON_BYTES = 1 << 24
"""The same limit for a line of JSON: its values may take twenty times its bytes."""

_JSON_FORMATS = frozenset(("jsonl", "jsonl-files"))

MOST_PIXELS = 1 << 26
"""Images with more pixels, according to their header, are never decoded."""

MOST_ERROR_CHARACTERS = 2000
MOST_NAME_CHARACTERS = 200


def most_sample_bytes(formats: Iterable[str]) -> int:
    """Return the size limit of samples that are read whole, for data of these formats."""
    return MOST_SAMPLE_BYTES if _JSON_FORMATS.isdisjoint(formats) else MOST_JSON_BYTES


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on what is shown of a sample.

    A sample's panels take at most about 20 bytes per character and node: 3 MB in a list, 60 MB in full.

    Attributes:
        panels: parts of a sample.
        nodes: values of a JSON document, including nested objects.
        deep: nesting depth of these values.
        items: numbers of an array, ids of a document.
        shown_bytes: bytes of a part that isn't text.
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
"""For one sample on its own page."""

"""Limits on everything that is shown, and numbers with their origin. Cut values have their full size."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.store.derived import NotAtHand, at_hand_only

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
    """Limits on the shown part of a sample.

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


T = TypeVar("T")

MOST_SCANNED_BYTES = 1 << 26
"""Data up to this size is scanned for unknown values; larger data only on request."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and how it was determined.

    Attributes:
        value: the number; None if unknown.
        how: in words: `"index"`, `"side file"`, `"counted"`; if unknown, the reason.
        estimated_from: size of the sample of an estimate; `of`: size of the whole.
    """

    value: Any
    how: str
    estimated_from: int | None = None
    of: int | None = None

    @property
    def is_estimate(self) -> bool:
        return self.estimated_from is not None


def is_too_large_here(error: BaseException) -> bool:
    """Return whether a file doesn't fit in this process's memory, as opposed to an I/O error."""
    return isinstance(error, OSError) and error.errno == errno.ENOMEM


def is_of_the_disk(error: BaseException) -> bool:
    """Return whether a disk or store failed: not an error of the data."""
    return isinstance(error, OSError) and not is_too_large_here(error)


def at_hand(ask: Callable[[], T], size_bytes: int | None) -> T | None:
    """Return the result of `ask` if that is fast; else None.

    Args:
        ask: function that may decode an index or scan the data.
        size_bytes: size of the data, None if unknown: small data is scanned.
    """
    try:
        with at_hand_only():
            return ask()
    except NotAtHand:
        return ask() if size_bytes is not None and size_bytes <= MOST_SCANNED_BYTES else None
    except OSError as error:
        if is_too_large_here(error):
            return None
        raise

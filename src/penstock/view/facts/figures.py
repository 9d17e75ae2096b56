"""Numbers with the way they were determined."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.store.derived import NotAtHand, at_hand_only

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

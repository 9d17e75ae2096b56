"""A number, and how it was found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.store.derived import NotAtHand, at_hand_only

T = TypeVar("T")

MOST_SCANNED_BYTES = 1 << 26
"""Data of so many bytes are looked through where nothing tells what is asked; larger ones only when asked to."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and how it was found.

    Attributes:
        value: it; None where it is not known.
        how: in words: `"index"`, `"side file"`, `"counted"`; where it is not known, why.
        estimated_from: how many were looked at, where it is an estimate; `of`: how many there are.
    """

    value: Any
    how: str
    estimated_from: int | None = None
    of: int | None = None

    @property
    def is_estimate(self) -> bool:
        """Whether it was worked out from some of the data."""
        return self.estimated_from is not None


def is_too_large_here(error: BaseException) -> bool:
    """Whether this process has no room for a file; a disk that fails is another thing."""
    return isinstance(error, OSError) and error.errno == errno.ENOMEM


def is_of_the_disk(error: BaseException) -> bool:
    """Whether a disk or store failed, which a page that stays must not tell as a fault of the data."""
    return isinstance(error, OSError) and not is_too_large_here(error)


def at_hand(ask: Callable[[], T], size_bytes: int | None) -> T | None:
    """What `ask` gives, where that takes no long work; None where it does.

    Args:
        ask: may decode an index, or look through the data.
        size_bytes: of the data, None where it is not known: small ones are looked through.
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

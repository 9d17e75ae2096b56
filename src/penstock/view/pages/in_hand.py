"""Large parts in memory until clients have read them, with a limit on their bytes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from penstock.view.facts.samples import Media

MOST_BYTES = 1 << 28
"""Limit on parts that are read whole; parts in their own files are read while they are sent, without memory."""


class Busy(Exception):
    """Signal that the limit is reached."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A part in memory while anybody reads it."""

    media: Media


class InHand:
    """The parts that a server is sending.

    Args:
        most_bytes: limit on their bytes, without the part that is being read when it is reached.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._lock = threading.Lock()

    def take(self, read: Callable[[], Media]) -> Held:
        """Return the result of `read`; raise `Busy` if slow clients hold too much."""
        with self._lock:
            if sum(len(one.media.data.head) for one in self._held) >= self._most_bytes:
                raise Busy
        held = Held(read())
        with self._lock:
            self._held.add(held)
        return held

"""Large parts in memory until their readers have taken them: how many bytes of them there may be."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from penstock.view.facts.samples import Media

MOST_BYTES = 1 << 28
"""Parts that are read whole; one that lies in a file by itself is read as it is sent, and takes no memory."""


class Busy(Exception):
    """As much is handed out as may be."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A part as long as anybody reads it."""

    media: Media


class InHand:
    """The parts that a server hands out.

    Args:
        most_bytes: of them; what is being read when they are reached comes on top.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._lock = threading.Lock()

    def take(self, read: Callable[[], Media]) -> Held:
        """What `read` gives; raises `Busy` where slow readers hold too much."""
        with self._lock:
            if sum(len(one.media.data.head) for one in self._held) >= self._most_bytes:
                raise Busy
        held = Held(read())
        with self._lock:
            self._held.add(held)
        return held

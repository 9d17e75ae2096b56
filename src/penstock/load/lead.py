"""How far a worker may be ahead of whoever takes its results."""

from __future__ import annotations

import contextlib
import time
from queue import Empty, SimpleQueue

AHEAD_BYTES = 1 << 18
"""Small results may be made ahead up to here."""

LEAST_BYTES = 1 << 12
"""What each result counts at least."""


class Lead:
    """Counts what was made and what was taken, and lets the maker sleep while it is too far ahead.

    It may be `prefetch` results ahead; of small ones, once the first is taken, further, while they take less than
    `AHEAD_BYTES`. To wake somebody costs as much as a small batch: one who sleeps does so until half of these bytes are
    taken.

    One thread makes, another takes.

    Args:
        prefetch: results that may always be ahead.
    """

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        # Each has one writer, so no lock is needed.
        self._made = self._made_bytes = 0
        self._taken = self._taken_bytes = 0
        self._asleep = self._stopped = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> bool:
        """Sleeps until another result may be made; False where none is wanted any more."""
        while not self._stopped:
            if self._has_room(AHEAD_BYTES):
                return True
            self._asleep = True
            # Asked again: what was taken a moment ago woke nobody, as nobody was asleep.
            if not self._has_room(AHEAD_BYTES // 2) and not self._stopped:
                self._wakes.get()
            self._asleep = False
        return False

    def sleep(self, seconds: float) -> bool:
        """Sleeps for so many seconds, or until nothing is wanted any more: true then."""
        end_s = time.monotonic() + seconds
        while not self._stopped and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=left_s)
        return self._stopped

    @property
    def num_made(self) -> int:
        """Results made so far."""
        return self._made

    def made(self, result_bytes: int) -> int:
        """A result was made; the bytes that it counts."""
        counted_bytes = max(result_bytes, LEAST_BYTES)
        self._made += 1
        self._made_bytes += counted_bytes
        return counted_bytes

    def took(self, results: int, result_bytes: int) -> None:
        """So many results were taken, of so many bytes as they count."""
        self._taken += results
        self._taken_bytes += result_bytes
        if self._asleep and self._has_room(AHEAD_BYTES // 2):
            self._asleep = False
            self._wakes.put(None)

    def stop(self) -> None:
        """Nothing more is wanted: whoever sleeps wakes."""
        self._stopped = True
        self._wakes.put(None)

    def _has_room(self, limit_bytes: int) -> bool:
        if self._made - self._taken < self._prefetch:
            return True
        # Not before the first was taken: whoever waits for it would wait for Python's lock, too.
        return bool(self._taken) and self._made_bytes - self._taken_bytes < limit_bytes

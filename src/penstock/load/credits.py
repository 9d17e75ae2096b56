"""Byte-credit flow control between one producer and one consumer: how far a worker may run ahead."""

from __future__ import annotations

import contextlib
import time
from queue import Empty, SimpleQueue

AHEAD_BYTES = 1 << 18
"""Small results may be produced ahead up to this many bytes."""

LEAST_BYTES = 1 << 12
"""What each result counts as, at least."""


class CreditWindow:
    """Counts results that are produced and consumed, and blocks the producer while it is too far ahead.

    It may be `prefetch` results ahead. Of small results it may be further ahead, once the first is consumed, while they
    take less than `AHEAD_BYTES`. Waking a thread costs as much as a small batch, so a blocked producer wakes only when
    half of these bytes are consumed.

    One thread produces, another consumes.

    Args:
        prefetch: results that may always be ahead.
    """

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        # Each has one writer, so no lock is needed.
        self._produced = self._produced_bytes = 0
        self._consumed = self._consumed_bytes = 0
        self._asleep = self._stopped = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> bool:
        """Block until another result may be produced; False once the window is closed."""
        while not self._stopped:
            if self._has_room(AHEAD_BYTES):
                return True
            self._asleep = True
            # Checked again: what was consumed a moment ago woke nobody, as nobody was asleep.
            if not self._has_room(AHEAD_BYTES // 2) and not self._stopped:
                self._wakes.get()
            self._asleep = False
        return False

    def sleep(self, seconds: float) -> bool:
        """Block for so many seconds, or until the window is closed; whether it is."""
        end_s = time.monotonic() + seconds
        while not self._stopped and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=left_s)
        return self._stopped

    @property
    def num_produced(self) -> int:
        """Results produced so far."""
        return self._produced

    def produced(self, result_bytes: int) -> int:
        """Count a result that was produced; returns the bytes that it counts as."""
        counted_bytes = max(result_bytes, LEAST_BYTES)
        self._produced += 1
        self._produced_bytes += counted_bytes
        return counted_bytes

    def consumed(self, results: int, result_bytes: int) -> None:
        """Count results that were consumed, and wake the producer where there is room again."""
        self._consumed += results
        self._consumed_bytes += result_bytes
        if self._asleep and self._has_room(AHEAD_BYTES // 2):
            self._asleep = False
            self._wakes.put(None)

    def stop(self) -> None:
        """Close the window: a blocked producer wakes and ends."""
        self._stopped = True
        self._wakes.put(None)

    def _has_room(self, limit_bytes: int) -> bool:
        if self._produced - self._consumed < self._prefetch:
            return True
        # Not before the first is consumed: its consumer would wait for the GIL, too.
        return bool(self._consumed) and self._produced_bytes - self._consumed_bytes < limit_bytes

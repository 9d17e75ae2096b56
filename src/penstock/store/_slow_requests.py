"""Logs requests that a server is slow to answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator

from penstock._ending import Worker, has_ended, sleep
from penstock._secrets import logger

REPORT_AFTER_S = 10.0
"""A request without an answer for so long is logged; then again each time that the wait has doubled."""

_log = logger()


class SlowRequests:
    """The running requests of a process, watched by a thread that lives while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, float, float]] = {}
        self._next = 0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def waiting(self, url: str) -> Generator[None]:
        """Watch a request for as long as the block runs."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = (url, time.monotonic(), REPORT_AFTER_S)
            if self._thread is None and not has_ended():
                # Its sleep ends with the process.
                self._thread = Worker(self._look, "penstock-slow-requests", stop=int, doing=lambda: "slow requests")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[number]

    def _look(self) -> None:
        while not sleep(REPORT_AFTER_S / 10):
            now = time.monotonic()
            with self._lock:
                late = {one: found for one, found in self._waiting.items() if now - found[1] >= found[2]}
                for one, (url, since, report_after_s) in late.items():
                    self._waiting[one] = (url, since, 2 * report_after_s)
                if not self._waiting:
                    self._thread = None
                    return
            for url, since, _ in late.values():
                _log.warning("%s: no answer for %.0f s; still waiting", url, now - since)

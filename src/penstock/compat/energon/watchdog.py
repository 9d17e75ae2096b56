"""Log of all threads' stacks when a batch takes too long; the run continues."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from collections.abc import Callable
from typing import TypeVar

from penstock._secrets import logger

_log = logger("penstock.energon")

T = TypeVar("T")


class Watchdog:
    """Runs calls however long they take, and logs those that are slow.

    Args:
        timeout_seconds: a call that takes longer is slow.
        initial_timeout_seconds: the same for the first call; None for no difference.
    """

    def __init__(self, timeout_seconds: float, initial_timeout_seconds: float | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._next = timeout_seconds if initial_timeout_seconds is None else initial_timeout_seconds

    def __call__(self, call: Callable[[], T]) -> T:
        timer = threading.Timer(self._next, _log_stacks, (self._next,))
        timer.daemon = True
        timer.start()
        self._next = self._timeout_seconds
        try:
            return call()
        finally:
            timer.cancel()


def _log_stacks(seconds: float) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        stacks = file.read()
    _log.warning("no batch for %g s; still waiting. Threads are at:\n%s", seconds, stacks)

"""A time limit for each sample of a loop: the expressions of people may meet texts at which a regex never ends.

Python's `re` looks for signals while it searches, so a timer of the process can end a search. It ticks once a second
and looks whether the loop went on: that costs nothing a sample, and a limit holds within a second. Signals reach the
main thread alone; in another one, or where the process has a timer of its own, there is no limit, and the log says so.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from typing import Any

from penstock._secrets import logger

_log = logger()
_TICK_S = 1.0


class TookTooLong(Exception):
    """A sample took more than its time."""


class Clock:
    """Where the loop is.

    Attributes:
        row: to be set to another number for each sample.
    """

    __slots__ = ("_seen", "_ticks", "row")

    def __init__(self) -> None:
        self.row = self._seen = -1
        self._ticks = 0

    def tick(self) -> int:
        """For how many ticks the loop has been where it is."""
        self._ticks = self._ticks + 1 if self.row == self._seen else 0
        self._seen = self.row
        return self._ticks


@contextlib.contextmanager
def each_at_most(seconds: float) -> Generator[Clock]:
    """A clock for a loop, in which a sample that takes longer raises `TookTooLong`."""
    clock = Clock()
    if not _can_tick():
        _log.warning(
            "no time limit for regular expressions: not in the main thread, or the process already uses a timer"
        )
        yield clock
        return

    def tick(_number: int, _frame: Any) -> None:
        if clock.tick() * _TICK_S >= seconds:
            raise TookTooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        yield clock
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _can_tick() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    # A handler that is not Python's own could not be put back.
    return signal.getitimer(signal.ITIMER_REAL)[0] == 0 and signal.getsignal(signal.SIGALRM) is not None

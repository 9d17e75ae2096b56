"""Progress reports of long operations inside a call, for a display in another thread.

Opening a dataset may list a million files, look up the size of each, or read an index of 300 MB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Report: TypeAlias = Callable[[str, int, int | None], object]
"""Progress callback, called with a description, the amount done, and the total or None if unknown."""

_EVERY = 1000
_REPORT: ContextVar[Report | None] = ContextVar("report", default=None)


@contextlib.contextmanager
def reporting_to(callback: Report) -> Generator[None]:
    """Call `callback` from time to time in the block, only for this thread."""
    before = _REPORT.set(callback)
    try:
        yield
    finally:
        _REPORT.reset(before)


def report(unit: str, done: int, total: int | None = None) -> None:
    """Report progress to the caller of `reporting_to`, if any."""
    callback = _REPORT.get()
    if callback is not None:
        callback(unit, done, total)


def counted(unit: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield the items, and report progress after each thousand, and at the end if there were more."""
    count = 0
    for count, one in enumerate(items, 1):
        if count % _EVERY == 0:
            report(unit, count, total)
        yield one
    if count >= _EVERY:
        report(unit, count, total)

"""Progress reports of long operations inside a call, for a display in another thread.

Opening a dataset may list a million files, look up the size of each, or read an index of 300 MB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Tell: TypeAlias = Callable[[str, int, int | None], object]
"""Progress callback, called with a description, the amount done, and the total or None if unknown."""

_EVERY = 1000
_TELL: ContextVar[Tell | None] = ContextVar("tell", default=None)


@contextlib.contextmanager
def told_to(tell: Tell) -> Generator[None]:
    """Call `tell` from time to time in the block, only for this thread."""
    before = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(before)


def tell(what: str, done: int, total: int | None = None) -> None:
    """Report progress to the caller of `told_to`, if any."""
    hears = _TELL.get()
    if hears is not None:
        hears(what, done, total)


def told(what: str, items: Iterable[T], total: int | None = None, so_far: int = 0) -> Iterator[T]:
    """Yield the items, and report progress after each thousand, and at the end if there were more."""
    count = so_far
    for count, one in enumerate(items, so_far + 1):
        if count % _EVERY == 0:
            tell(what, count, total)
        yield one
    if count - so_far >= _EVERY:
        tell(what, count, total)

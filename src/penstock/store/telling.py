"""How far what takes long is, told while it goes on to who asked to hear it.

Opening a dataset may list a million files, ask for the size of each, or read an index of 300 MB. Who waits for that in
another thread, as a page does, shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Tell: TypeAlias = Callable[[str, int, int | None], object]
"""Called with what is being done, how much of it is, and of how much, None where that is not known."""

_EVERY = 1000
_TELL: ContextVar[Tell | None] = ContextVar("tell", default=None)


@contextlib.contextmanager
def told_to(tell: Tell) -> Generator[None]:
    """Inside, and in this thread alone, `tell` is called now and then."""
    before = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(before)


def tell(what: str, done: int, total: int | None = None) -> None:
    """Tell how far something is, where anybody listens."""
    hears = _TELL.get()
    if hears is not None:
        hears(what, done, total)


def told(what: str, items: Iterable[T], total: int | None = None, so_far: int = 0) -> Iterator[T]:
    """The same items, told of each thousand of them that were taken; and in the end, where there are more than that."""
    count = so_far
    for count, one in enumerate(items, so_far + 1):
        if count % _EVERY == 0:
            tell(what, count, total)
        yield one
    if count - so_far >= _EVERY:
        tell(what, count, total)

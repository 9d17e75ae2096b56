"""Whether what is derived from data on the way, such as an index, may be kept in the cache folder."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

_nothing: ContextVar[bool] = ContextVar("keeps_nothing", default=False)


@contextlib.contextmanager
def keeping_nothing(really: bool = True) -> Generator[None]:
    """In the block, what is derived of data on this machine stays in memory, and nothing is written for it."""
    token = _nothing.set(really or _nothing.get())
    try:
        yield
    finally:
        _nothing.reset(token)


def keeps_nothing() -> bool:
    """Whether nothing is to be kept."""
    return _nothing.get()

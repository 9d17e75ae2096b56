"""Threads of a dataset for its pages, and how long pages wait for them.

A store that hangs blocks only the threads of its own dataset. Work that isn't done in time continues, and the next
request for it gets the result: a page that times out first succeeds on a retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock._threads import Pool

T = TypeVar("T")

THREADS = 3
"""Threads per dataset, which limits the samples in memory."""

WAIT_SECONDS = 8.0
"""Seconds a page waits for its facts; then it shows that they are being read, and reloads."""

SOON_SECONDS = 0.5
"""Seconds to wait if the work is known to take long."""

_KEPT_SECONDS = 120.0
_MOST_WAITING = 256


class Late(Exception):
    """Signal that work isn't done in time and continues."""


class Patience:
    """Threads of a dataset.

    Attributes:
        is_long: whether all of them wait for slow work: then no page waits.
    """

    def __init__(self, name: str) -> None:
        self._pool = Pool(THREADS, name)
        self._pending: dict[Hashable, tuple[Future[Any], float]] = {}
        self.is_long = False

    async def within(self, seconds: float, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Raises:
            Late: it takes longer, or queued work before it does.
        """
        future = self.begin(key, work)
        waited = asyncio.wrap_future(future)
        waited.add_done_callback(_seen)
        until = time.monotonic() + seconds
        while not (await asyncio.wait([waited], timeout=min(seconds, SOON_SECONDS)))[0]:
            if self.is_long or time.monotonic() >= until:
                raise Late
        self._pending.pop(key, None)
        return future.result()

    async def each(self, seconds: float, works: Iterable[tuple[Hashable, Callable[[], T]]]) -> list[T | None]:
        """Return the result of each of these, None for late ones; all share the limit of `seconds`."""
        keyed = [(key, self.begin(key, work)) for key, work in works]
        futures = [asyncio.wrap_future(future) for _, future in keyed]
        for waited in futures:
            waited.add_done_callback(_seen)
        if futures:
            await asyncio.wait(futures, timeout=seconds)
        found: list[T | None] = []
        for key, future in keyed:
            if future.done() and not future.cancelled():
                self._pending.pop(key, None)
                found.append(future.result())
            else:
                found.append(None)
        return found

    def begin(self, key: Hashable, work: Callable[[], T]) -> Future[T]:
        """Start work and return its future; raise `Late` if too much is queued."""
        now = time.monotonic()
        for old in [one for one, (future, began) in self._pending.items() if _is_over(future, began, now)]:
            del self._pending[old]
        known = self._pending.get(key)
        if known is not None and not known[0].cancelled() and not _came_late(known[0]):
            return known[0]
        if len(self._pending) >= _MOST_WAITING:
            raise Late
        future = self._pool.submit(work)
        self._pending[key] = (future, now)
        return future


def _is_over(future: Future[Any], began: float, now: float) -> bool:
    """Return whether a result wasn't requested again, or queued work waited in vain and can be dropped."""
    return now - began > _KEPT_SECONDS and (future.done() or future.cancel())


def _came_late(future: Future[Any]) -> bool:
    """Return whether the work itself waited in vain for other work: the next request retries it."""
    return future.done() and isinstance(future.exception(), Late)


def _seen(future: asyncio.Future[Any]) -> None:
    """Retrieve an error, which is reported by the thread's future, or too late for anybody."""
    if not future.cancelled():
        future.exception()

"""Work for a page, in threads of its dataset, and how long a page waits for it.

A store that hangs holds the threads of its own dataset, and no others. What is not done in time goes on, and is handed
to who asks for the same again: so a page that comes too late at first is there at the second look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock._pool import Pool

T = TypeVar("T")

THREADS = 3
"""Of a dataset: so many of its samples are in memory at once."""

WAIT_SECONDS = 8.0
"""So long a page waits for its facts; then it says that they are being read, and looks again."""

SOON_SECONDS = 0.5
"""So long where it is known that what they wait for takes long."""

_KEPT_SECONDS = 120.0
_MOST_WAITING = 256


class Late(Exception):
    """Not done in time; it goes on."""


class Patience:
    """The threads of a dataset.

    Args:
        name: of the threads.

    Attributes:
        is_long: whether all of them wait for what takes long: then no page does.
    """

    def __init__(self, name: str) -> None:
        self._pool = Pool(THREADS, name)
        self._pending: dict[Hashable, tuple[Future[Any], float]] = {}
        self.is_long = False

    async def within(self, seconds: float, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives.

        Args:
            seconds: to wait for it.
            key: of the work: one that goes on is not begun again.
            work: it.

        Raises:
            Late: it takes longer; so does what stands before it.
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
        """What each of these gives, None for one that is late; all wait `seconds` together."""
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
        """The same, to come; raises `Late` where too much waits."""
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
    """Whether nobody asked again for what is done; what waits for a thread in vain is dropped."""
    return now - began > _KEPT_SECONDS and (future.done() or future.cancel())


def _came_late(future: Future[Any]) -> bool:
    """Whether the work itself waited in vain for other work: who asks next waits for that anew."""
    return future.done() and isinstance(future.exception(), Late)


def _seen(future: asyncio.Future[Any]) -> None:
    """An error is told by the future of the thread, or comes too late for anybody."""
    if not future.cancelled():
        future.exception()

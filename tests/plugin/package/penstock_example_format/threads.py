"""An executor of a package of its own: tasks run in threads of this process, and their results come in order."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Threads:
    """See `penstock.abc.Executor`. A few tasks are taken ahead, so that memory stays bounded."""

    def __init__(self, pool: ThreadPoolExecutor, ahead: int) -> None:
        self._pool, self._ahead = pool, ahead

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order."""
        rest = iter(tasks)
        begun = deque(self._pool.submit(fn, task) for task in islice(rest, self._ahead))
        try:
            while begun:
                result = begun.popleft().result()
                begun.extend(self._pool.submit(fn, task) for task in islice(rest, 1))
                yield result
        finally:
            for future in begun:
                future.cancel()


@contextlib.contextmanager
def make(workers: int, preload: Sequence[str]) -> Generator[Threads]:
    """Threads, ended with the `with` block; nothing is to be imported for them."""
    with ThreadPoolExecutor(workers) as pool:
        yield Threads(pool, 2 * workers)

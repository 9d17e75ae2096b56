"""Executor in this process: for tests, for single tasks, and if no process may be started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class InlineExecutor:
    """Executor that runs each task in this process when its result is requested.

    Examples:
        >>> from penstock.executors import InlineExecutor
        >>> list(InlineExecutor().map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield `fn(task)` for each task, in order."""
        return (fn(task) for task in tasks)

    def begin(self, fn: Callable[[T], R], task: T) -> Callable[[], R]:
        """Return a function that returns the result of one task."""
        return lambda: fn(task)

    def close(self) -> None:
        """Do nothing, because this executor has no workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

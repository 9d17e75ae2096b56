"""An executor that runs tasks in this process: for tests, for one task, and where no process may be started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class InlineExecutor:
    """Runs each task when its result is requested; see `penstock.abc.Executor`."""

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order."""
        return (fn(task) for task in tasks)

    def begin(self, fn: Callable[[T], R], task: T) -> Callable[[], R]:
        """Call what is returned for the result of one task."""
        return lambda: fn(task)

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

"""An executor that was made elsewhere, held to the law of results: as many as tasks, in their order.

What is written follows the order of results. Those of a pool that gives them as they come would be a dataset whose
documents lie elsewhere, or lack, or come twice, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.abc import Executor
from penstock.errors import ConfigError, PrepareError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CheckedExecutor:
    """Numbers the tasks of another executor, and looks at the numbers of its results.

    Args:
        executor: what runs the tasks; the caller opens and closes it.

    Raises:
        ConfigError: it has no `map`, or is a class.
    """

    executor: Executor

    def __post_init__(self) -> None:
        if isinstance(self.executor, type) or not callable(getattr(self.executor, "map", None)):
            raise ConfigError(
                "not an executor",
                found=repr(self.executor),
                expected="a name, or an object with map(fn, tasks)",
            )

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order.

        Raises:
            PrepareError: results are missing, come twice or in another order, or are not of these tasks.
        """
        sent = _Counted(tasks)
        results: Iterable[Any] = self.executor.map(_Numbered(fn), sent)
        return self._in_order(results, sent)

    def _in_order(self, results: Iterable[Any], sent: _Counted[Any]) -> Iterator[Any]:
        taken = 0
        for found in results:
            if not isinstance(found, _Result):
                raise self._broken(f"{type(found).__name__} for task {taken}", "what the function gives")
            if found.number != taken:
                raise self._broken(f"task {found.number} after {taken} results", f"task {taken}")
            taken += 1
            yield found.value
        if taken != sent.count or not sent.is_over:
            raise self._broken(f"{taken} results", "one for each task")

    def _broken(self, found: str, expected: str) -> PrepareError:
        return PrepareError(
            f"the executor {type(self.executor).__name__} does not give the results of its tasks in order",
            found=found,
            expected=expected,
            hint="See the laws of penstock.abc.Executor",
        )


class _Counted(Generic[T]):
    """Tasks with their numbers, and how many were taken."""

    def __init__(self, tasks: Iterable[T]) -> None:
        self._tasks = tasks
        self.count = 0
        self.is_over = False

    def __iter__(self) -> Iterator[tuple[int, T]]:
        for number, task in enumerate(self._tasks):
            self.count = number + 1
            yield number, task
        self.is_over = True


@dataclass(frozen=True, slots=True)
class _Result:
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A function of a numbered task, which crosses to other processes as its own function does."""

    fn: Callable[[Any], Any]

    def __call__(self, task: tuple[int, Any]) -> _Result:
        number, one = task
        return _Result(number, self.fn(one))

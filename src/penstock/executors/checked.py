"""Check of foreign executors: as many results as tasks, in their order.

The order of results is the order of the output. A pool that yields results as they finish would write a dataset with
reordered, missing or repeated documents without an error. Errors of tasks travel as results: an engine that retries
failed tasks would run them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.abc import Executor
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors.law import from_worker

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CheckedExecutor:
    """Wrapper that numbers the tasks of another executor and checks the numbers of its results.

    Raises:
        ConfigError: the executor has no `map`, or is a class.
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
        """Yield `fn(task)` for each task, in order.

        Raises:
            PrepareError: results are missing, come twice or in another order, or are not of these tasks; or the
                executor itself failed.
        """
        sent = _Counted(tasks)
        with _Engine(self.executor, sent):
            results: Iterable[Any] = self.executor.map(_Numbered(fn, os.getpid()), sent)
        return self._in_order(results, sent)

    def _in_order(self, results: Iterable[Any], sent: _Counted[Any]) -> Iterator[Any]:
        taken = 0
        with _Engine(self.executor, sent):
            each = iter(results)
        try:
            while True:
                with _Engine(self.executor, sent):
                    found = next(each, _OVER)
                if found is _OVER:
                    break
                yield self._value(found, taken)
                taken += 1
        finally:
            # The rest is dropped: after an error no further task may start.
            close = getattr(each, "close", None)
            if callable(close):
                close()
        if taken != sent.count or not sent.is_over:
            raise self._broken(f"{taken} results", "one per task")

    def _value(self, found: Any, taken: int) -> Any:
        if not isinstance(found, _Result):
            raise self._broken(f"{type(found).__name__} for task {taken}", "the result of the function")
        if found.number != taken:
            raise self._broken(f"task {found.number} after {taken} results", f"task {taken}")
        if found.error is not None:
            raise found.error
        return found.value

    def _broken(self, found: str, expected: str) -> PrepareError:
        return PrepareError(
            f"the executor {type(self.executor).__name__} doesn't return the results of its tasks in order",
            found=found,
            expected=expected,
            hint="See the requirements in penstock.abc.Executor",
        )


_OVER = object()


@dataclass(slots=True)
class _Engine:
    """Context for errors that the executor itself raises, such as a pool with a killed worker."""

    executor: Executor
    sent: _Counted[Any]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /) -> None:
        if error is None or error is self.sent.error or not isinstance(error, Exception):
            return
        if isinstance(error, PenstockError):
            return
        raise PrepareError(
            f"the executor {type(self.executor).__name__} failed",
            found=f"{type(error).__name__}: {error}",
        ) from error


class _Counted(Generic[T]):
    """Tasks with their numbers, the number of tasks taken, and the error that ended them."""

    def __init__(self, tasks: Iterable[T]) -> None:
        self._tasks = tasks
        self.count = 0
        self.is_over = False
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[tuple[int, T]]:
        try:
            for number, task in enumerate(self._tasks):
                self.count = number + 1
                yield number, task
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise
        self.is_over = True


@dataclass(frozen=True, slots=True)
class _Result:
    number: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Picklable function of a numbered task."""

    fn: Callable[[Any], Any]
    pid: int
    """The caller's process, in which errors are returned unchanged."""

    def __call__(self, task: tuple[int, Any]) -> _Result:
        number, one = task
        try:
            return _Result(number, self.fn(one))
        except Exception as error:
            return _Result(number, error=error if os.getpid() == self.pid else from_worker(error))

"""Tests of `penstock.abc.Executor`, as a suite that the tests of each executor inherit.

class TestMine(ExecutorSuite):
    kills = True  # tasks run in other processes

    @pytest.fixture
    def executor(self):
        with make(2, ()) as made:
            yield made

Functions for the workers are in this module: they must be able to import it.
"""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.abc import Executor
from penstock.errors import Corrupt, PenstockError, PrepareError

DEATHS = 3
MANY = 10**6
MOST_TAKEN = 5000


@dataclass(frozen=True, slots=True)
class Deadly:
    """Task that kills its process, `times` times."""

    folder: str
    number: int
    times: int = 0

    @property
    def described(self) -> str:
        return f"{self.folder}/input, bytes {self.number} to {self.number + 1}"


def run_deadly(task: Deadly) -> int:
    """Return the number of a task, unless this run kills the process."""
    runs = 0
    while True:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{task.folder}/{task.number}-{runs}", os.O_CREAT | os.O_EXCL))
            break
        runs += 1
    if runs < task.times:
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number


def raise_corrupt(number: int) -> int:
    """Return a number, except for 3, which raises an error."""
    if number == 3:
        raise Corrupt("the input is damaged", path="a.gz", offset_bytes=number)
    return number


def raise_odd(number: int) -> int:
    """Raise an error that can't be copied."""
    raise Odd(number, "two arguments")


def give_lambda(number: int) -> Any:
    """Return a result that can't be pickled."""
    return lambda: number


def give_unreadable(number: int) -> Any:
    """Return a result that can't be unpickled."""
    return Unreadable()


def sleep_then_give(task: tuple[float, int]) -> int:
    """Return a number after some seconds."""
    time.sleep(task[0])
    return task[1]


class Odd(Exception):
    """Error with two arguments, of which pickle preserves one."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{number} is odd")


class Unreadable:
    """Object that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.truediv, (1, 0)


class Endless:
    """Endless numbers as tasks, with a count of the taken ones."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(MANY):
            self.taken += 1
            yield number


class ExecutorSuite:
    """Tests of an executor: inherit the class and define the fixture `executor`, with two workers.

    Attributes:
        kills: tasks run in processes that may be killed: tests of dead workers run.
        sends: functions, tasks and results are sent to other processes.

    Examples:
        >>> import pytest
        >>> from penstock.executors import make_executor
        >>> from penstock.testing import ExecutorSuite
        >>> class TestMyExecutor(ExecutorSuite):
        ...     @pytest.fixture
        ...     def executor(self):
        ...         with make_executor("inline", 1) as made:
        ...             yield made

        pytest runs all laws. To run one:

        >>> with make_executor("inline", 1) as executor:
        ...     TestMyExecutor().test_results_come_in_order(executor)
    """

    kills = False
    sends = False

    # --- order ---------------------------------------------------------------------------------------------------

    def test_results_come_in_order(self, executor: Executor) -> None:
        assert list(executor.map(operator.neg, range(50))) == [-n for n in range(50)]
        assert list(executor.map(str, [])) == []
        assert list(executor.map(str, iter([1]))) == ["1"]

    def test_a_slow_task_does_not_change_the_order(self, executor: Executor) -> None:
        tasks = [(0.2, 0), (0.0, 1), (0.1, 2), (0.0, 3)]
        assert list(executor.map(sleep_then_give, tasks)) == [0, 1, 2, 3]

    def test_large_tasks_and_results(self, executor: Executor) -> None:
        assert list(executor.map(bytes.upper, [b"x" * (1 << 20)] * 5)) == [b"X" * (1 << 20)] * 5

    def test_tasks_are_taken_as_they_are_needed(self, executor: Executor) -> None:
        tasks = Endless()
        results = iter(executor.map(operator.neg, tasks))
        assert [next(results) for _ in range(3)] == [0, -1, -2]
        assert tasks.taken < MOST_TAKEN
        _close(results)
        assert list(executor.map(operator.neg, [1, 2])) == [-1, -2]

    # --- errors --------------------------------------------------------------------------------------------------

    def test_an_error_is_raised_in_its_turn_and_keeps_its_kind(self, executor: Executor) -> None:
        results = iter(executor.map(raise_corrupt, range(8)))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Corrupt, match=r"a\.gz") as error:
            next(results)
        assert error.value.offset_bytes == 3
        assert list(executor.map(operator.neg, [1])) == [-1]

    def test_an_error_stops_the_work(self, executor: Executor) -> None:
        tasks = Endless()
        with pytest.raises(Corrupt):
            list(executor.map(raise_corrupt, tasks))
        assert tasks.taken < MOST_TAKEN

    def test_errors_of_others_and_of_python(self, executor: Executor) -> None:
        for fn, said in ((raise_odd, "7 is odd"), (sys.exit, "7")):
            with pytest.raises((PenstockError, Odd, SystemExit), match=said):
                list(executor.map(fn, [7]))
        assert list(executor.map(operator.neg, [1])) == [-1]

    def test_an_error_of_the_tasks_comes_in_its_turn(self, executor: Executor) -> None:
        def tasks() -> Iterator[int]:
            yield from (1, 2, 3)
            raise Corrupt("the input is damaged", path="a.gz")

        with pytest.raises(Corrupt, match=r"a\.gz"):
            list(executor.map(operator.neg, tasks()))
        assert list(executor.map(operator.neg, [1])) == [-1]

    def test_what_does_not_cross_is_an_error(self, executor: Executor) -> None:
        if not self.sends:
            pytest.skip("nothing is sent to other processes")
        crossings: list[Any] = [(give_lambda, [1]), (give_unreadable, [1]), (id, [1, Unreadable(), 3])]
        for fn, tasks in crossings:
            with pytest.raises(PenstockError):
                list(executor.map(fn, tasks))
            assert list(executor.map(operator.neg, [1, 2, 3])) == [-1, -2, -3]

    # --- deaths --------------------------------------------------------------------------------------------------

    def test_a_worker_that_dies_is_replaced(self, executor: Executor, tmp_path: Path) -> None:
        self._require_deaths()
        tasks = [Deadly(str(tmp_path), number, times=int(number % 3 == 0)) for number in range(7)]
        assert list(executor.map(run_deadly, tasks)) == list(range(7))

    def test_a_worker_that_dies_in_the_last_task(self, executor: Executor, tmp_path: Path) -> None:
        self._require_deaths()
        tasks = [Deadly(str(tmp_path), number, times=2 * int(number == 3)) for number in range(4)]
        assert list(executor.map(run_deadly, tasks)) == [0, 1, 2, 3]

    def test_a_task_that_kills_is_named_and_the_rest_goes_on(self, executor: Executor, tmp_path: Path) -> None:
        self._require_deaths()
        tasks = [Deadly(str(tmp_path), number, times=99 * int(number == 2)) for number in range(12)]
        results, given = iter(executor.map(run_deadly, tasks)), list[int]()
        with pytest.raises(PrepareError, match=r"killed 3 workers.*input, bytes 2 to 3"):
            given.extend(results)
        assert given == [0, 1][: len(given)]
        assert len(list(tmp_path.glob("2-*"))) == DEATHS
        assert all(list(tmp_path.glob(f"{number}-*")) for number in range(12))
        assert list(executor.map(operator.neg, [1, 2])) == [-1, -2]

    def _require_deaths(self) -> None:
        if not self.kills:
            pytest.skip("tasks run in this process")


def _close(results: Iterator[Any]) -> None:
    close = getattr(results, "close", None)
    if callable(close):
        close()

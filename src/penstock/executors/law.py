"""Scheduling of tasks for executors that start their own workers: order, dead workers, and tasks set aside.

`Books` tracks one map. Executors ask it for the next task, and report the outcome of each task.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock._secrets import logger, redact
from penstock.errors import PenstockError, PrepareError

_log = logger(__name__)

MOST_DEATHS = 3
"""Number of workers that one task may kill before it is set aside."""

MOST_SET_ASIDE = 16
"""After this many tasks are set aside, the cause isn't a task: the work ends. Before any result, three are enough."""

MOST_AHEAD = 1024
"""Limit on the tasks that are started after the earliest one without a result."""

_MOST_CHARACTERS = 200
_NAMED = 3


@dataclass(slots=True)
class Books:
    """State of one map: dispatched tasks, finished results, and the number of the next result.

    Memory: results that wait for an earlier one, at most `MOST_AHEAD`, and those that the caller holds.
    """

    tasks: Iterator[Any]
    taken: int = 0
    turn: int = 0
    """Number of the next task in order."""
    _upcoming: deque[tuple[int, Any]] = field(default_factory=deque[tuple[int, Any]])
    _again: deque[tuple[int, Any]] = field(default_factory=deque[tuple[int, Any]])
    _done: dict[int, Any] = field(default_factory=dict[int, Any])
    _failed: dict[int, BaseException] = field(default_factory=dict[int, BaseException])
    _deaths: dict[int, int] = field(default_factory=dict[int, int])
    _aside: dict[int, str] = field(default_factory=dict[int, str])
    _has_result: bool = False

    def has_task(self) -> bool:
        """Return whether a task can be dispatched now; the next one is prepared."""
        first_failed = min(self._failed, default=self.taken)
        while self._again and self._again[0][0] > first_failed:
            self._again.popleft()
        if self._again:
            return True
        most_aside = MOST_SET_ASIDE if self._has_result else MOST_DEATHS
        if self._failed or len(self._aside) >= most_aside or self.taken - self.turn >= MOST_AHEAD:
            return False
        return bool(self._upcoming) or self._fetch()

    def next_task(self) -> tuple[int, Any]:
        """Return the task that `has_task` prepared, with its number."""
        return (self._again or self._upcoming).popleft()

    def done(self, place: int, result: Any) -> None:
        self._done[place] = result
        self._has_result = True
        self._deaths.pop(place, None)

    def failed(self, place: int, error: BaseException) -> None:
        """Record the error of a task: no later one is dispatched."""
        self._failed[place] = error

    def died(self, place: int, task: Any) -> None:
        """Record that the worker running this task died: the task is retried, or set aside."""
        deaths = self._deaths[place] = self._deaths.get(place, 0) + 1
        named = f"task {place} ({described(task)})"
        _log.warning("a worker was killed or exited in %s: %d of %d times", named, deaths, MOST_DEATHS)
        if deaths < MOST_DEATHS:
            self.give_back(place, task)
        else:
            self._aside[place] = named
            self._done[place] = None

    def give_back(self, place: int, task: Any) -> None:
        """Return a task that wasn't started: it is dispatched again, before later ones."""
        self._again.append((place, task))
        self._again = deque(sorted(self._again, key=lambda one: one[0]))

    def is_due(self) -> bool:
        return self.turn in self._done or self.turn in self._failed

    def due(self) -> Iterator[Any]:
        """Yield the results that are due. After a task was set aside there are none, but the rest is still run.

        Raises:
            Exception: the error of the next task in order.
        """
        while self.turn in self._done:
            result = self._done.pop(self.turn)
            self.turn += 1
            if not self._aside or self.turn <= min(self._aside):
                yield result
        if self.turn in self._failed:
            if min(self._aside, default=self.turn) < self.turn:
                self.end(cause=self._failed[self.turn])
            raise self._failed[self.turn]

    def end(self, cause: BaseException | None = None) -> None:
        """Raise the error for tasks that were set aside, if any."""
        if self._aside:
            raise set_aside([self._aside[place] for place in sorted(self._aside)]) from cause
        if self.turn < self.taken:
            raise PrepareError("a map was interrupted by another one of the same executor")

    def _fetch(self) -> bool:
        try:
            task = next(self.tasks)
        except StopIteration:
            return False
        except Exception as error:
            # In order: an earlier task may fail too, and then that is the error.
            self._failed[self.taken] = error
            return False
        self._upcoming.append((self.taken, task))
        self.taken += 1
        return True


def set_aside(named: list[str]) -> PrepareError:
    """Return the error for tasks that killed their workers."""
    more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
    what = "a task" if len(named) == 1 else f"{len(named):,} tasks, each of which"
    return PrepareError(
        f"{what} killed {MOST_DEATHS} workers and was given up",
        found="; ".join(named[:_NAMED]) + more,
        hint="The system kills processes when memory is short: use fewer workers (--workers), or check this input",
    )


def never_started() -> PrepareError:
    """Return the error for workers that end before they start a task."""
    hint = "The system kills processes when memory is short: use fewer workers (--workers)"
    return PrepareError(f"{MOST_DEATHS} workers in a row exited before their first task", hint=hint)


def described(task: Any) -> str:
    """Return a task's name in errors: its `described`, else a short form of it."""
    try:
        said = getattr(task, "described", None)
        text = said if isinstance(said, str) else repr(task)
    except Exception:  # a user-defined `repr`
        text = type(task).__name__
    text = redact(text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def from_worker(error: BaseException) -> Exception:
    """Return an error that the caller can unpickle: itself if its type is known there, else its text."""
    trace = "".join(traceback.format_exception(error))
    if not isinstance(error, PenstockError | OSError):
        error = PrepareError(f"a worker failed with {type(error).__name__}: {error}")
    error.add_note(f"In the worker:\n{trace}")
    return error

"""What tests of executors and of shared work have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.internals import place_of

from penstock.abc import Staged
from penstock.errors import NotFound
from penstock.executors import InlineExecutor


class Counting:
    """An executor that runs tasks here, and counts them: all that the Protocol asks for."""

    def __init__(self) -> None:
        self.num_tasks = 0

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.num_tasks += 1
            yield fn(task)


class Dying:
    """An executor whose process is stopped after so many results."""

    def __init__(self, after: int) -> None:
        self.after = after

    def map(self, fn: Any, tasks: Any) -> Iterator[Any]:
        for number, result in enumerate(InlineExecutor().map(fn, tasks)):
            if number == self.after:
                raise KeyboardInterrupt
            yield result


def files_of(output: str) -> dict[str, bytes]:
    """Name → bytes of all files of a dataset, in whatever store; none where it is not there."""
    place = place_of(output)
    try:
        names = list(place.store.list(place.path))
    except NotFound:
        return {}
    return {path[len(place.path) + 1 :]: place.store.get(path) for path in names}


def finish_part(staged: Staged, end: bytes) -> None:
    """Append what follows the tokens of a part, and publish it."""
    staged.write(end)
    staged.commit()

"""Marks work whose output may be visible in part, or visible and not checked yet.

`.<name>.unfinished` stands beside an output from just before its first file becomes visible until the work is done. So
a run that was killed in between is known, and the same command goes on with what is there, or says that it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.abc import Store
from penstock.errors import NotFound, PenstockError
from penstock.store._replaced import hidden_stem
from penstock.store.outputs import sweep_killed
from penstock.store.put import put
from penstock.store.resolve import absolute

_MOST_BYTES = 1 << 20

ResultT = TypeVar("ResultT")


def mark_path(target_path: str) -> str:
    """Path of the mark."""
    folder, name = os.path.split(absolute(target_path))
    return os.path.join(folder, f".{hidden_stem(name)}.unfinished")


def set_mark(store: Store, target_path: str, what: dict[str, Any], told: Any = None) -> None:
    """Say durably that `what` (plain JSON) is about to become visible, and what the work will say of it (`told`)."""
    put(store, mark_path(target_path), _encoded({"what": what, "told": told}))


def has_mark(store: Store, target_path: str, what: dict[str, Any]) -> bool:
    """Whether a run that did the same was killed before it was done."""
    return _mark_of(store, target_path, what) is not None


def remove_mark(store: Store, target_path: str) -> None:
    """Remove the mark: the work is done, or nothing of it is there. If that fails, it is hidden and harmless."""
    for _ in range(2):  # an error may be one of a moment
        with contextlib.suppress(PenstockError, OSError):
            store.delete(mark_path(target_path))
            return


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # a name that is no UTF-8, which JSON holds as escapes alone
        return json.dumps(value, sort_keys=True).encode()


def _mark_of(store: Store, target_path: str, what: dict[str, Any]) -> dict[str, Any] | None:
    """The mark of the same work."""
    with contextlib.suppress(NotFound, ValueError, RecursionError):
        path = mark_path(target_path)
        if store.size(path) <= _MOST_BYTES:
            mark, asked = json.loads(store.get(path)), json.loads(_encoded(what))
            if isinstance(mark, dict) and mark.keys() == {"what", "told"} and mark["what"] == asked:
                return mark
    return None


@dataclass(frozen=True, slots=True)
class Once(Generic[ResultT]):
    """One output of one piece of work: a run of the same that was killed right after its commit is known by it.

    Attributes:
        store: where it goes.
        path: its path.
        what: all that decides its bytes, as plain JSON.
        files: of the output.
        published: the result of the work, where what is there is its output; given what the work said at its commit.
    """

    store: Store
    path: str
    what: dict[str, Any]
    files: Sequence[str]
    published: Callable[[Any], ResultT | None]

    def made(self) -> ResultT | None:
        """What a run of the same work made before it was killed; sweeps what else that run left.

        Raises:
            PrepareError: another writer holds this output.
        """
        mark = _mark_of(self.store, self.path, self.what)
        result = None if mark is None else self.swept(mark["told"])
        if result is not None:
            remove_mark(self.store, self.path)
        return result

    def swept(self, told: Any) -> ResultT | None:
        """What is there, where it is the output; what a killed run left beside it is removed. Raises as `made`."""
        result = self.published(told)
        if result is not None:
            sweep_killed(self.store, self.files)
        return result

    def is_begun(self) -> bool:
        """Whether a run of the same work was killed while it made its output visible."""
        return has_mark(self.store, self.path, self.what)

    def commit(self, commit: Callable[[], ResultT], told: Any = None, *, goes_on: bool = False) -> ResultT:
        """Make it visible, with a mark beside it until that is done; where it fails, the mark stays if work `goes_on`.

        Args:
            commit: does it.
            told: plain JSON for `published`.
            goes_on: the output is several, and the same work keeps those that are visible.
        """
        try:
            set_mark(self.store, self.path, self.what, told)
            result = commit()
        except BaseException as error:
            # An interrupt while the commit tidies up: the output is there, and the same command has to know its own.
            interrupted = not isinstance(error, Exception)
            if not goes_on and not (interrupted and self._is_visible(told)):
                remove_mark(self.store, self.path)
            raise
        remove_mark(self.store, self.path)
        return result

    def _is_visible(self, told: Any) -> bool:
        with contextlib.suppress(PenstockError, OSError):
            return self.published(told) is not None
        return False

"""Marks of work whose output may be partly visible, or visible but not verified yet.

`.<name>.unfinished` is next to an output from just before its first file becomes visible until the work is done. So a
run that was killed in between is detected, and the same command resumes it, or reports that it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import NotFound, PenstockError, PrepareError
from penstock.store._files import is_folder, is_there, remove_tree
from penstock.store._leftovers import make_staged, take_leftovers
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.names import REPLACED, UNFINISHED, WORK, hidden_path
from penstock.store.outputs import sweep_killed
from penstock.store.place import Place, absolute
from penstock.store.put import put

_MOST_BYTES = 1 << 20
INPUTS = "input_states"
FAILED = (PenstockError, OSError)
"""Errors of a verification that finds damage, or can't read the output."""

ResultT = TypeVar("ResultT")


def mark_path(target_path: str) -> str:
    return hidden_path(absolute(target_path), UNFINISHED)


def set_mark(store: Store, target_path: str, what: dict[str, Any], told: Any = None) -> None:
    """Record durably that `what` (plain JSON) is about to become visible, and the result of the work (`told`)."""
    put(store, mark_path(target_path), _encoded({"what": what, "told": told}))


def remove_mark(store: Store, target_path: str) -> None:
    """Remove the mark; if that fails, it is hidden and harmless."""
    for _ in range(2):  # an error may be temporary
        with contextlib.suppress(PenstockError, OSError):
            store.delete(mark_path(target_path))
            return


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # a name that isn't UTF-8, which JSON can only store as escapes
        return json.dumps(value, sort_keys=True).encode()


def _mark_of(
    store: Store, target_path: str, what: dict[str, Any], *, of_any_inputs: bool = False
) -> dict[str, Any] | None:
    with contextlib.suppress(NotFound, ValueError, RecursionError):
        path = mark_path(target_path)
        if store.size(path) <= _MOST_BYTES:
            mark, asked = json.loads(store.get(path)), json.loads(_encoded(what))
            if isinstance(mark, dict) and mark.keys() == {"what", "told"} and isinstance(mark["what"], dict):
                inputs = mark["what"].get(INPUTS)
                if of_any_inputs or inputs is None:  # version 0.2 didn't record them
                    mark["what"].pop(INPUTS, None)
                    asked.pop(INPUTS, None)
                if mark["what"] == asked:
                    return mark
    return None


@dataclass(frozen=True, slots=True)
class Once(Generic[ResultT]):
    """One output of one job, to detect a run that was killed right after its commit.

    Attributes:
        store: store of the output.
        path: path of the output.
        what: everything that determines its bytes, as plain JSON, and the state of its inputs under `INPUTS`.
        files: files of the output.
        published: returns the result of the work if the existing output belongs to it; gets `told` of the commit.
    """

    store: Store
    path: str
    what: dict[str, Any]
    files: Sequence[str]
    published: Callable[[Any], ResultT | None]

    def made(self) -> ResultT | None:
        """Return the result of a run of the same work that was killed, and remove its leftovers.

        Raises:
            PrepareError: another writer holds this output.
        """
        mark = _mark_of(self.store, self.path, self.what)
        result = None if mark is None else self.swept(mark["told"])
        if result is not None:
            remove_mark(self.store, self.path)
        return result

    def swept(self, told: Any) -> ResultT | None:
        """Return the result if the output exists, and remove leftovers; raise like `made`."""
        result = self.published(told)
        if result is not None:
            sweep_killed(self.store, self.files)
        return result

    def is_begun(self) -> bool:
        """Return whether a run of the same work was killed during its commit, maybe of inputs that changed since."""
        return _mark_of(self.store, self.path, self.what, of_any_inputs=True) is not None

    def is_current(self) -> bool:
        """Return whether a run of the same work was killed during its commit, and its inputs are the same."""
        return _mark_of(self.store, self.path, self.what) is not None

    def commit(self, commit: Callable[[], ResultT], told: Any = None, *, goes_on: bool = False) -> ResultT:
        """Make the output visible, and mark it as unfinished meanwhile.

        Args:
            commit: makes the output visible.
            told: plain JSON for `published`.
            goes_on: keep the mark after an error, because a re-run keeps visible outputs.
        """
        was_begun = self.store.is_local and self.is_begun()
        try:
            set_mark(self.store, self.path, self.what, told)
            result = commit()
        except FAILED as error:
            is_of_another = was_begun and isinstance(error, PrepareError)  # a run that holds the output
            if not goes_on and not is_of_another:
                remove_mark(self.store, self.path)
            raise
        except BaseException:
            # After an interrupt the output may exist, and the same command must recognize it.
            if not goes_on and not self._is_visible(told):
                remove_mark(self.store, self.path)
            raise
        remove_mark(self.store, self.path)
        return result

    def _is_visible(self, told: Any) -> bool:
        with contextlib.suppress(PenstockError, OSError):
            return self.published(told) is not None
        return False


_BESIDE = (".penstock", ".planes", ".planes.penstock")
"""Suffixes of files that belong to a file of a dataset."""


@dataclass(slots=True)
class Replaced:
    """The previous state of an output that a command writes.

    For local outputs, second names of the old files are kept next to the output until the block of `keeping` ends.
    """

    place: Place
    paths: tuple[str, ...]
    backup: str | None = None

    def restore(self, *, drop: bool = False) -> None:
        """Remove the current output, and restore the old one unless `drop`."""
        if not self.place.is_local:
            _remove_remote(self.place, self.paths)
            return
        for number, path in enumerate(self.paths):
            kept = None if self.backup is None or drop else os.path.join(self.backup, str(number))
            if is_folder(path):
                remove_tree(os, path)
            elif is_there(path):
                os.unlink(path)
            if kept is not None and is_there(kept):
                LocalStore().rename(kept, path)


@contextlib.contextmanager
def restoring(replaced: Replaced, *, drop: bool = False) -> Generator[None]:
    """Undo the publication if the block, which verifies the output, fails; see `Replaced.restore`."""
    try:
        yield
    except FAILED:
        replaced.restore(drop=drop)
        raise


@contextlib.contextmanager
def keeping(place: Place, files: Sequence[str], *, replaces: bool) -> Generator[Replaced]:
    """Keep the replaced files of an output until the block ends.

    Args:
        place: location of the output.
        files: its files, or its directory, without side files.
        replaces: whether it may replace anything.
    """
    paths = (*files, *(f"{file.rstrip('/')}{suffix}" for file in files for suffix in _BESIDE))
    replaced = Replaced(place, tuple(dict.fromkeys(path.rstrip("/") for path in paths)))
    parent, name = os.path.split(os.path.abspath(replaced.paths[0]))
    if place.is_local:
        take_leftovers(os, parent, f"{name}{REPLACED}", keep=False)  # left by a killed run
    there = [number for number, path in enumerate(replaced.paths) if replaces and place.is_local and is_there(path)]
    if not there:
        yield replaced
        return
    replaced.backup, fd = make_staged(os, parent, f"{name}{REPLACED}", is_folder=True)
    try:
        for number in there:
            _give_second_names(replaced.paths[number], os.path.join(replaced.backup, str(number)))
        yield replaced
    finally:
        remove_tree(os, replaced.backup)
        os.close(fd)


def _give_second_names(path: str, name: str) -> None:
    """Hard-link a file, or all files of a directory, to a second name; copy them if there are no hard links."""
    if is_folder(path):
        unfinished = shutil.ignore_patterns(WORK)  # a distributed job in an output folder, which may be in use
        shutil.copytree(path, name, symlinks=True, ignore=unfinished, copy_function=_link)
    else:
        _link(path, name)


def _link(path: str, name: str) -> str:
    if not LocalStore().link(path, name):
        shutil.copy2(path, name, follow_symlinks=False)
    return name


def _remove_remote(place: Place, paths: Sequence[str]) -> None:
    """Delete the objects of an output; objects that can't be deleted stay."""
    for path in paths:
        with contextlib.suppress(PenstockError, OSError):
            place.store.delete(path)
        with contextlib.suppress(PenstockError, OSError):
            for name in list(place.store.list(path)):
                place.store.delete(name)

"""Undo of a publication whose own verification fails: the new output goes, and what it replaced comes back."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.store._files import remove_tree
from penstock.store._leftovers import make_staged, take_leftovers
from penstock.store._status import is_folder, is_there
from penstock.store.local import LocalStore
from penstock.store.place import Place

FAILED = (PenstockError, OSError)
"""What a verification raises that finds damage, or can't read the output."""
_BESIDE = (".penstock", ".planes", ".planes.penstock")
"""Suffixes of what belongs to a file of a dataset."""


@dataclass(slots=True)
class Replaced:
    """The output as it was before a verb wrote it.

    On this machine it is kept under second names of its files, next to the output, until the block of `keeping` ends.
    """

    place: Place
    paths: tuple[str, ...]
    backup: str | None = None

    def restore(self, *, drop: bool = False) -> None:
        """Remove what is there now, and put back what was there before; with `drop`, only remove."""
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
    """Keep what an output replaces until the block ends.

    Args:
        place: the output.
        files: its files, or its folder, side files left out.
        replaces: whether it may replace anything; otherwise there is nothing to keep.
    """
    paths = (*files, *(f"{file.rstrip('/')}{suffix}" for file in files for suffix in _BESIDE))
    replaced = Replaced(place, tuple(dict.fromkeys(path.rstrip("/") for path in paths)))
    parent, name = os.path.split(os.path.abspath(replaced.paths[0]))
    if place.is_local:
        take_leftovers(os, parent, f"{name}.replaced", keep=False)  # of a run that was killed
    there = [number for number, path in enumerate(replaced.paths) if replaces and place.is_local and is_there(path)]
    if not there:
        yield replaced
        return
    replaced.backup, fd = make_staged(os, parent, f"{name}.replaced", is_folder=True)
    try:
        for number in there:
            _give_second_names(replaced.paths[number], os.path.join(replaced.backup, str(number)))
        yield replaced
    finally:
        remove_tree(os, replaced.backup)
        os.close(fd)


def _give_second_names(path: str, name: str) -> None:
    """Give a file, or all files of a folder, a second name; a copy where the file system has no second names."""
    if is_folder(path):
        unfinished = shutil.ignore_patterns(".work")  # shared work in an output folder, which others may hold
        shutil.copytree(path, name, symlinks=True, ignore=unfinished, copy_function=_link)
    else:
        _link(path, name)


def _link(path: str, name: str) -> str:
    if not LocalStore().link(path, name):
        shutil.copy2(path, name, follow_symlinks=False)
    return name


def _remove_remote(place: Place, paths: Sequence[str]) -> None:
    """Delete the objects of an output; what can't be deleted stays."""
    for path in paths:
        with contextlib.suppress(PenstockError, OSError):
            place.store.delete(path)
        with contextlib.suppress(PenstockError, OSError):
            for name in list(place.store.list(path)):
                place.store.delete(name)

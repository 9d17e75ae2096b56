"""Work folders: what an unfinished piece of work keeps beside its output, under a lock.

Such a folder is its own, never a link to another one, and nothing is removed from it but what work of its kind makes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec

from penstock.errors import ConfigError, NotFound
from penstock.store._replaced import is_staged_name
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock

T = TypeVar("T")

_LOCK = "lock"
_REMOVE = "Remove it, or name another output"
_MOST_NOTE_BYTES = 1 << 28


@contextlib.contextmanager
def hold_work(folder: str) -> Generator[bool]:
    """Hold the lock of a work folder, which is made where missing.

    Yields:
        Whether it was had.

    Raises:
        ConfigError: a link, or no folder, stands in its place, or no file in that of its lock.
    """
    if os.path.lexists(folder) and not is_real_folder(folder):
        raise ConfigError("what stands in the place of the work folder is another thing", path=folder, hint=_REMOVE)
    with contextlib.ExitStack() as stack:
        try:
            had = stack.enter_context(hold_lock(os.path.join(folder, _LOCK), wait=False))
        except FileExistsError as error:
            raise ConfigError(str(error.strerror), path=os.path.join(folder, _LOCK), hint=_REMOVE) from None
        yield had


def is_real_folder(folder: str) -> bool:
    """Whether a folder is there; what a link leads to is none."""
    return os.path.isdir(folder) and not os.path.islink(folder)


def empty_work(store: LocalStore, folder: str, is_ours: Callable[[str], bool], first: str = "") -> None:
    """Remove what work left in its folder, but the lock; raises the first error after the last name.

    Args:
        store: where it is.
        folder: the work folder, locked.
        is_ours: whether work of this kind makes a file or folder of a name; staged ones are.
        first: the name that goes first.
    """
    errors: list[OSError] = []
    for name in sorted(os.listdir(folder), key=lambda name: name != first):
        if name != _LOCK and (is_staged_name(name) or is_ours(name)):
            try:
                _remove(store, os.path.join(folder, name))
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def drop_work(store: LocalStore, folder: str) -> None:
    """Remove an emptied work folder and its lock, which is held; one with another's file in it stays."""
    with contextlib.suppress(NotFound):
        store.delete(os.path.join(folder, _LOCK))
    if not os.listdir(folder):
        store.remove_folder(folder)


def read_note(store: LocalStore, path: str, kind: type[T]) -> T | None:
    """The JSON of a file that says how far work is; None where there is none, or it is damaged."""
    try:
        return msgspec.json.decode(store.get(path, 0, _MOST_NOTE_BYTES), type=kind)
    except (NotFound, IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _remove(store: LocalStore, path: str) -> None:
    if not is_real_folder(path):
        store.delete(path)
        return
    for root, folders, names in os.walk(path, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in names + links:
            store.delete(os.path.join(root, name))
        store.remove_folder(root)

"""Work folders: the unfinished work on an output, next to it or in it, under a lock.

A work folder is never a link, and only files that such work makes are removed from it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.store._files import is_folder, is_link
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.names import hidden_name, is_staged_name
from penstock.store.place import Place
from penstock.store.put import aborting, put

T = TypeVar("T")

_LOCK = "lock"
_REMOVE = "Remove it, or choose another output"
_MOST_NOTE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A work folder, which may not exist yet. Locally, a lock in it excludes other runs; object stores have no lock.

    `is_ours` tells whether work of this kind makes a file or directory of a name.
    """

    store: Store
    path: str
    is_ours: Callable[[str], bool]

    @property
    def place(self) -> Place:
        return Place(self.store, self.path)

    def file(self, name: str) -> Place:
        return self.place.child(name)

    def is_there(self) -> bool:
        return is_real_folder(self.place) if self.place.is_local else self.place.is_folder()

    def names(self) -> list[str]:
        if self.place.is_local:
            return os.listdir(self.path)
        start = len(self.path) + 1
        with contextlib.suppress(NotFound):
            return sorted({path[start:].partition("/")[0] for path in self.store.list(self.path)})
        return []

    @contextlib.contextmanager
    def tried(self, *, shared: bool = False) -> Generator[bool]:
        """Try to take the lock, creating the folder if needed; yield whether this run has it.

        Raises `ConfigError` if the folder or lock is a link or something else.
        """
        if not self.place.is_local:
            yield True
            return
        if self.place.exists() and not self.is_there():
            what = "the path of the work folder is taken by something else"
            raise ConfigError(what, path=self.path, hint=_REMOVE)
        lock = self.file(_LOCK).path
        with contextlib.ExitStack() as stack:
            try:
                had = stack.enter_context(hold_lock(lock, wait=False, shared=shared))
            except FileExistsError as error:
                raise ConfigError(str(error.strerror), path=lock, hint=_REMOVE) from None
            yield had

    @contextlib.contextmanager
    def held(self, refusal: PrepareError, *, shared: bool = False) -> Generator[None]:
        """Like `tried`, but raise `refusal` if another run has the lock."""
        with self.tried(shared=shared) as had:
            if not had:
                raise refusal
            yield

    def put(self, name: str, data: bytes) -> None:
        """Write a small file durably, replacing an existing one."""
        put(self.store, self.file(name).path, data)

    def read(self, name: str, kind: type[T]) -> T | None:
        """Return a JSON file; None if it is missing or damaged."""
        try:
            return msgspec.json.decode(self.store.get(self.file(name).path, 0, _MOST_NOTE_BYTES), type=kind)
        except (NotFound, IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def remove(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            _remove(self.store, self.file(name))

    def clear(self, first: str = "") -> None:
        """Remove all work except the lock, the name `first` before the rest; raises the first error at the end."""
        self._remove_all(lambda name: is_staged_name(name) or self.is_ours(name), first)

    def clear_staged(self) -> None:
        """Remove temporary files of killed runs."""
        self._remove_all(is_staged_name)

    def drop(self) -> None:
        """Remove the lock, which this run holds, and the folder unless it holds files of others."""
        if not self.store.is_local:
            return
        with contextlib.suppress(NotFound):
            self.store.delete(self.file(_LOCK).path)
        if not self.names():
            self.store.remove_folder(self.path)

    def _remove_all(self, is_chosen: Callable[[str], bool], first: str = "") -> None:
        errors: list[OSError] = []
        for name in sorted(self.names(), key=lambda name: name != first):
            if name != _LOCK and is_chosen(name):
                try:
                    _remove(self.store, self.file(name))
                except OSError as error:
                    if name == first:
                        raise  # keep the files that it describes
                    errors.append(error)
        if errors:
            raise errors[0]


def work_beside(output: Place, suffix: str, is_ours: Callable[[str], bool]) -> WorkFolder:
    return WorkFolder(local_store(output), name_beside(output, suffix).path, is_ours)


def name_beside(output: Place, suffix: str) -> Place:
    return output.folder().child(hidden_name(output.name, suffix))


def local_store(place: Place) -> Store:
    """Return the store for local work on a place."""
    return place.store if place.is_local else LocalStore()


def bare(place: Place) -> Place:
    """Return the same place in a store without a cache."""
    return Place(place.store.origin, place.path)


def is_real_folder(place: Place) -> bool:
    """Return whether a local directory exists that isn't a link."""
    return is_folder(place.path) and not is_link(place.path)


def _remove(store: Store, place: Place) -> None:
    """Remove a file, link or directory without following links."""
    if not store.is_local:
        store.delete_listed([place.path] if place.is_file() else list(store.list(place.path)))
        return
    if not is_real_folder(place):
        store.delete(place.path)
        return
    for root, folders, names in os.walk(place.path, topdown=False):
        links = [name for name in folders if is_link(os.path.join(root, name))]
        for name in names + links:
            store.delete(os.path.join(root, name))
        store.remove_folder(root)


_BLOCK_BYTES = 1 << 24


def local_copy(file: Place, folder: Place) -> Place:
    """Return a local file as it is, and a remote one as a copy in a local folder."""
    if file.is_local:
        return file
    copy, offset_bytes, size_bytes = folder.child(file.name), 0, file.store.size(file.path)
    with aborting(copy.store.stage(copy.path)) as staged:
        while offset_bytes < size_bytes:
            data = file.store.get(file.path, offset_bytes, min(_BLOCK_BYTES, size_bytes - offset_bytes))
            staged.write(data)
            offset_bytes += len(data)
        staged.commit()
    return copy

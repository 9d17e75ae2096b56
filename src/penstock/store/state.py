"""What a file is now, by what is asked for without reading it: its size, its time of change, its version."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock._pool import Pool
from penstock.store.cache import CachedStore
from penstock.store.place import Place
from penstock.store.remote import RemoteStore

_AT_ONCE = 16
_NONE: Mapping[str, os.stat_result] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileState:
    """What a file is now.

    Attributes:
        size_bytes: of it.
        mtime_ns: time of its last change, 0 where it is far away.
        version: that a store gives it, empty on this machine.
    """

    size_bytes: int
    mtime_ns: int
    version: str


def state_of(file: Place, statuses: Mapping[str, os.stat_result] = _NONE) -> FileState:
    """What a file is now, or was when its status was asked for; raises `NotFound`."""
    if file.is_local:
        status = statuses.get(file.path) or os.stat(file.path)
        return FileState(status.st_size, status.st_mtime_ns, "")
    store = file.store.remote if isinstance(file.store, CachedStore) else file.store
    if isinstance(store, RemoteStore):
        head = store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)
    return FileState(store.size(file.path), 0, "")


def states_at_opening(files: Iterable[Place]) -> list[FileState]:
    """What files are now, or, where they are far away, were when their store was opened or asked for them last."""

    def state(file: Place) -> FileState:
        if not isinstance(file.store, CachedStore):
            return state_of(file)
        head = file.store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)

    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(state, files))


def states_of(files: Iterable[Place], statuses: Mapping[str, os.stat_result] = _NONE) -> list[FileState]:
    """The same of many, some at once: a request each, where they are far away."""
    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(functools.partial(state_of, statuses=statuses), files))

"""What a file is now, by what is asked for without reading it: its size, its time of change, its version."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from penstock._pool import Pool
from penstock.store.cache import CachedStore
from penstock.store.place import Place
from penstock.store.powers import ListsHeads
from penstock.store.remote import RemoteStore

_AT_ONCE = 16
_WORTH_A_LISTING, _LISTED_AT_ONCE, _SPARSE = 4, 1000, 4
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
    """The same of many: of those far away as a listing has them now, or some at once by a request each."""
    files = list(files)
    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(looking_up(files, statuses), files))


def looking_up(files: Sequence[Place], statuses: Mapping[str, os.stat_result] = _NONE) -> Callable[[Place], FileState]:
    """`state_of` for these files: what a listing tells now of far ones is not asked for each."""
    listed: dict[tuple[int, str], FileState] = {}
    for store, some in by_store(files).items():
        remote = some[0].store.remote if isinstance(some[0].store, CachedStore) else some[0].store
        paths = [file.path for file in some]
        if isinstance(remote, ListsHeads) and is_worth_a_listing(paths):
            heads = remote.heads_under(folder_above(paths), most_listed(paths)) or {}
            listed |= {(store, path): FileState(head.size_bytes, 0, head.identity) for path, head in heads.items()}

    def look_up(file: Place) -> FileState:
        return listed.get((id(file.store), file.path)) or state_of(file, statuses)

    return look_up


def by_store(files: Iterable[Place]) -> dict[int, list[Place]]:
    """The files of each store that is not this machine."""
    found: dict[int, list[Place]] = {}
    for file in files:
        if not file.is_local:
            found.setdefault(id(file.store), []).append(file)
    return found


def is_worth_a_listing(files: Sequence[str]) -> bool:
    """Whether a listing of their folder costs less than a question for each of these files."""
    return len(files) >= _WORTH_A_LISTING


def most_listed(files: Sequence[str]) -> int:
    """Of so many names a listing is worth it; a page holds a thousand."""
    return max(_LISTED_AT_ONCE, _SPARSE * len(files))


def folder_above(files: Sequence[str]) -> str:
    """The folder, or the bucket, that all of these URLs of one store are in."""
    scheme, _, _ = files[0].partition("://")
    return f"{scheme}:/" + os.path.commonpath([file.removeprefix(f"{scheme}:/").rpartition("/")[0] for file in files])

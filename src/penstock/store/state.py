"""The state of a file, known without reading it: its size, its time of change, its version."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from penstock._pool import Pool
from penstock.store.place import Place
from penstock.store.remote import RemoteStore

_AT_ONCE = 16
_WORTH_A_LISTING, _LISTED_AT_ONCE, _SPARSE = 4, 1000, 4
_NONE: Mapping[str, os.stat_result] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file.

    Attributes:
        size_bytes: of it.
        mtime_ns: time of its last change, 0 in remote stores.
        version: of a remote store, else empty.
    """

    size_bytes: int
    mtime_ns: int
    version: str


def state_of(file: Place, statuses: Mapping[str, os.stat_result] = _NONE) -> FileState:
    """Return the state of a file, from its status if known; raise `NotFound`."""
    if file.is_local:
        status = statuses.get(file.path) or os.stat(file.path)
        return FileState(status.st_size, status.st_mtime_ns, "")
    store = file.store.origin
    if isinstance(store, RemoteStore):
        head = store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)
    return FileState(store.size(file.path), 0, "")


def states_at_opening(files: Iterable[Place]) -> list[FileState]:
    """Return states of files; of remote files, those when their store was opened or last looked."""

    def state(file: Place) -> FileState:
        if not file.store.keeps_copies:
            return state_of(file)
        head = file.store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)

    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(state, files))


def states_of(files: Iterable[Place], statuses: Mapping[str, os.stat_result] = _NONE) -> list[FileState]:
    """Return the current states of many files: remote ones by a listing, or concurrently by one request each."""
    files = list(files)
    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(looking_up(files, statuses), files))


def looking_up(files: Sequence[Place], statuses: Mapping[str, os.stat_result] = _NONE) -> Callable[[Place], FileState]:
    """Return `state_of` for these files, which uses one listing of remote files if that costs less."""
    listed: dict[tuple[int, str], FileState] = {}
    for store, some in by_store(files).items():
        remote = some[0].store.origin
        paths = [file.path for file in some]
        if is_worth_a_listing(paths):
            heads = remote.heads_under(folder_above(paths), most_listed(paths)) or {}
            listed |= {(store, path): FileState(head.size_bytes, 0, head.identity) for path, head in heads.items()}

    def look_up(file: Place) -> FileState:
        return listed.get((id(file.store), file.path)) or state_of(file, statuses)

    return look_up


def by_store(files: Iterable[Place]) -> dict[int, list[Place]]:
    """Group the files of remote stores."""
    found: dict[int, list[Place]] = {}
    for file in files:
        if not file.is_local:
            found.setdefault(id(file.store), []).append(file)
    return found


def is_worth_a_listing(files: Sequence[str]) -> bool:
    return len(files) >= _WORTH_A_LISTING


def most_listed(files: Sequence[str]) -> int:
    """Return up to how many names a listing is worth it; a page holds a thousand."""
    return max(_LISTED_AT_ONCE, _SPARSE * len(files))


def folder_above(files: Sequence[str]) -> str:
    """Return the directory, or the bucket, that contains all of these URLs of one store."""
    scheme, _, _ = files[0].partition("://")
    return f"{scheme}:/" + os.path.commonpath([file.removeprefix(f"{scheme}:/").rpartition("/")[0] for file in files])

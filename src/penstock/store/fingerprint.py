"""Fingerprints of data: a few reads at any size, independent of the location."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import numpy as np
import xxhash

from penstock._digest import digest
from penstock._threads import Pool
from penstock.errors import Corrupt, Truncated
from penstock.store._files import status_of
from penstock.store.base import Readable, Store, changed_while_read
from penstock.store.derived import DerivedCache
from penstock.store.place import Place


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """State of a local file when its dataset was opened, so that readers notice a replacement.

    The inode isn't compared, because some file systems in user space change it each time.
    """

    path: str
    size_bytes: int
    mtime_ns: int

    def require_same(self) -> None:
        """Raise `Truncated` or `Corrupt` if the file has changed; a missing file is ignored."""
        status = status_of(os.stat, self.path)
        if status is not None and (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            kind = Truncated if status.st_size < self.size_bytes else Corrupt
            raise changed_while_read(self.path, _shown(status.st_size, status.st_mtime_ns), str(self), kind)

    def require_not_later(self, path: str) -> None:
        """Raise `Corrupt` if this file was replaced, and the file at `path` was written after it was opened.

        For an index that may be rebuilt for the same files.
        """
        index, status = status_of(os.stat, self.path), status_of(os.stat, path)
        if index is None or status is None or (index.st_size, index.st_mtime_ns) == (self.size_bytes, self.mtime_ns):
            return
        if status.st_mtime_ns > self.mtime_ns:
            found = f"written {(status.st_mtime_ns - self.mtime_ns) / 10**9:.3f} s after it"
            raise changed_while_read(path, found, "a file that is older than the opened index")

    def __str__(self) -> str:
        return _shown(self.size_bytes, self.mtime_ns)


def opened_file(store: Store, path: str) -> OpenedFile | None:
    """Return the current state of a file, or None if it is missing, or remote: remote stores compare versions."""
    if not store.is_local:
        return None
    path = store.current_path(path)
    status = status_of(os.stat, path)
    return None if status is None else OpenedFile(path, status.st_size, status.st_mtime_ns)


def _shown(size_bytes: int, mtime_ns: int) -> str:
    return f"{size_bytes} bytes, last changed {mtime_ns / 10**9:.3f} s after 1970"


_AT_ONCE = 16
_WORTH_A_LISTING, _LISTED_AT_ONCE, _SPARSE = 4, 1000, 4
_NONE: Mapping[str, os.stat_result] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileState:
    """Size, modification time (0 in remote stores) and version (empty for local files) of a file."""

    size_bytes: int
    mtime_ns: int
    version: str


def state_of(file: Place, statuses: Mapping[str, os.stat_result] = _NONE) -> FileState:
    """Return the state of a file, from its status if known; raise `NotFound`."""
    if file.is_local:
        status = statuses.get(file.path) or os.stat(file.path)
        return FileState(status.st_size, status.st_mtime_ns, "")
    store = file.store.origin
    if store.server:
        head = store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)
    return FileState(store.size(file.path), 0, "")


def states_at_opening(files: Iterable[Place]) -> list[FileState]:
    """Return states of files; for remote files, as of the last request or the opening of their store."""

    def state(file: Place) -> FileState:
        if not file.store.keeps_copies:
            return state_of(file)
        head = file.store.head(file.path)
        return FileState(head.size_bytes, 0, head.identity)

    with Pool(_AT_ONCE, "penstock-states") as pool:
        return list(pool.map(state, files))


def states_of(files: Iterable[Place], statuses: Mapping[str, os.stat_result] = _NONE) -> list[FileState]:
    """Return the current states of many files; for remote files, by a listing or by concurrent requests."""
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
    found: dict[int, list[Place]] = {}
    for file in files:
        if not file.is_local:
            found.setdefault(id(file.store), []).append(file)
    return found


def is_worth_a_listing(files: Sequence[str]) -> bool:
    return len(files) >= _WORTH_A_LISTING


def most_listed(files: Sequence[str]) -> int:
    """Return the number of names up to which a listing is worthwhile; a page has a thousand."""
    return max(_LISTED_AT_ONCE, _SPARSE * len(files))


def folder_above(files: Sequence[str]) -> str:
    """Return the directory or bucket that contains all of these URLs of one store."""
    scheme, _, _ = files[0].partition("://")
    return f"{scheme}:/" + os.path.commonpath([file.removeprefix(f"{scheme}:/").rpartition("/")[0] for file in files])


_PLACE_BYTES = 4096
_PLACES = 4
_FILES = 16


def sample_fingerprint(
    store: Readable, format_name: str, index: bytes, files: Sequence[tuple[str, str]], *, index_digest: bytes = b""
) -> str:
    """Return 32 hex digits over a format's own index and 4 KiB at four places of at most 16 files.

    Args:
        store: store of the files, or a staged folder with relative paths.
        format_name: distinguishes equal bytes of different formats.
        index: the format's own index or header.
        files: pairs `(name, path)`: the name is hashed and must not depend on the location; the path is read.
        index_digest: xxh3-128 of the index, if known.
    """
    read = store.peek if isinstance(store, Store) else store.get_ranges
    hasher = xxhash.xxh3_128(format_name.encode())
    hasher.update(index_digest or xxhash.xxh3_128_digest(index))
    chosen = sorted(files, key=lambda file: xxhash.xxh3_128_digest(file[0].encode("utf-8", "surrogateescape")))[:_FILES]
    for name, path in chosen:
        size_bytes = store.size(path)
        hasher.update(f"\n{name}\n{size_bytes}\n".encode("utf-8", "surrogateescape"))
        places = _places(xxhash.xxh3_64_intdigest(hasher.digest()), size_bytes)
        for data in read(path, [(start, min(start + _PLACE_BYTES, size_bytes)) for start in places]):
            hasher.update(data)
    return hasher.hexdigest()


def once_a_host(
    store: Store,
    paths: Sequence[str],
    name: str,
    find: Callable[[], str],
    recorded: Callable[[], str | None] = lambda: None,
) -> str:
    """Return `find()`, a fingerprint, which is cached for the processes of this host if the data is remote.

    Args:
        store: store of the data.
        paths: files whose versions identify the data: its index, or all.
        name: distinguishes several fingerprints of the same files, by format and reading options.
        find: returns 32 hex digits, from a sample of the data.
        recorded: returns the fingerprint in the side file, which has priority for remote data. Local data is sampled,
            which is cheap and detects changes by other writers.
    """
    if not store.keeps_copies:
        return find()
    versions = [store.version(path) for path in paths]
    if not all(versions):
        return recorded() or find()
    key = f"fingerprint-1-{digest(*paths, *versions, name)}"
    kept = DerivedCache(store.folder).array(
        key, "uint8", lambda: np.frombuffer(bytes.fromhex(recorded() or find()), np.uint8)
    )
    return kept.tobytes().hex()


def file_key(store: Store, format_name: str, path: str) -> str:
    """Return the cache key of data derived from a whole file: its fingerprint, which is a sample, and its state.

    In a store with versions, only the version identifies a file.
    """
    size_bytes = store.size(path)
    version = store.version(path) if store.keeps_copies else ""
    if version:
        return digest(path, version, size_bytes)
    return digest(sample_fingerprint(store, format_name, b"", [("data", path)]), size_bytes, *_state(store, path))


def files_key(fingerprint: str, store: Store, paths: Iterable[str]) -> str:
    """Return such a key for several files; for remote files, from the version of the first one, their index.

    A missing file counts as missing.
    """
    store, paths = store.stored_in(paths)
    if store.keeps_copies:
        return digest(fingerprint, [store.version(path) for path in islice(paths, 1)])
    return digest(fingerprint, *(part for path in paths for part in _state(store, path)))


def _state(store: Store, path: str) -> list[str | int]:
    """Return the fields that show that a local file is unchanged, even if its modification time was restored."""
    if not store.is_local:
        return []
    status = status_of(os.stat, path)
    if status is None:
        return [path, "none"]
    return [os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _places(seed: int, size_bytes: int) -> list[int]:
    if size_bytes <= _PLACE_BYTES * _PLACES:
        return [place * _PLACE_BYTES for place in range(-(-size_bytes // _PLACE_BYTES))]
    return sorted(
        xxhash.xxh3_64_intdigest(bytes([place]), seed) % (size_bytes - _PLACE_BYTES) for place in range(_PLACES)
    )

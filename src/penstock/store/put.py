"""Small files that are written atomically."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from penstock._limits import MOST_DOCUMENT_BYTES
from penstock.abc import Staged
from penstock.errors import ConfigError, Denied, PenstockError, TooLarge, Unreachable, Unsupported
from penstock.store._files import files_below, is_folder, is_there
from penstock.store.base import NamedLate, StagedFolder, Store
from penstock.store.memory import MemoryStore
from penstock.store.names import BACKUP, STAGED, UNFINISHED, hidden_name, written_stem
from penstock.types import Buffer


def read_document(store: Store, path: str, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """Return all bytes of a file.

    Raises:
        NotFound: no such file.
        TooLarge: the file has more than `most_bytes`; nothing was read.
    """
    size_bytes = store.size(path)
    if size_bytes > most_bytes:
        found, expected = f"{size_bytes:,} bytes", f"at most {most_bytes:,}"
        raise TooLarge("the metadata file is too large", path=path, found=found, expected=expected)
    return store.get(path)


StagedT = TypeVar("StagedT", bound=Staged | StagedFolder)


@contextlib.contextmanager
def aborting(staged: StagedT) -> Generator[StagedT]:
    """Drop a staged file or directory at the end of the block, unless it is committed by then."""
    try:
        yield staged
    finally:
        staged.abort()


def put(store: Store, path: str, data: Buffer, *, overwrite: bool = True) -> None:
    """Write a file with these bytes, durably.

    Raises:
        ConfigError: the file exists and `overwrite` is false.
    """
    with aborting(store.stage(path, overwrite=overwrite)) as staged:
        staged.write(data)
        staged.commit()


def put_file(store: Store, path: str, local_path: str) -> None:
    """Replace a file by a copy of a local one, durably."""
    with aborting(store.stage(path, overwrite=True)) as staged:
        staged.append_file(local_path)
        staged.commit()


def put_new(store: Store, path: str, data: Buffer) -> bool:
    """Write a file, durably; return False if it exists."""
    return _made_new(store, path, lambda staged: staged.write(data))


def _made_new(store: Store, path: str, fill: Callable[[Staged], object]) -> bool:
    try:
        with aborting(store.stage_new(path)) as staged:
            fill(staged)
            staged.commit()
    except ConfigError:
        if not store.exists(path):
            raise
        return False
    return True


def commit_as(staged: Staged, path: str) -> bool:
    """Commit a staged file under another name in its directory; return False if that name exists.

    Raises:
        Unsupported: the store can't rename a staged file.
    """
    if not isinstance(staged, NamedLate):
        raise Unsupported("this store can't store unfinished work", path=path, hint="Choose an output in another store")
    return staged.commit_as(path)


def put_local_file(store: Store, path: str, target: str) -> bool:
    """Move or upload a local file or directory to the new path `target`, durably; return False if that exists.

    If the target is local, it must be in the same file system. Files at the top of a directory are uploaded last.
    """
    if store.is_local:
        return store.move_new(path, target)
    if is_folder(path):
        names = sorted(files_below(path), key=lambda name: (name.count("/"), name), reverse=True)
        new = [put_local_file(store, name, target + name.removeprefix(path)) for name in names]
        return all(new)
    return _made_new(store, target, lambda staged: staged.append_file(path))


def require_writable(store: Store, path: str) -> None:
    if not store.is_local:
        store.stage(path, overwrite=True).abort()


def beginning_of(store: Store, path: str, length_bytes: int) -> bytes | None:
    """Return the first bytes of a file, or None if it doesn't exist or can't be accessed with these credentials.

    Raises:
        OSError: the file can't be read, or the store doesn't answer.
    """
    try:
        return store.get(path, 0, length_bytes)
    except Denied:  # some stores also answer so for missing files
        return None
    except Unreachable:
        raise
    except (PenstockError, IsADirectoryError, NotADirectoryError):
        return None


_STEP_BYTES = 1 << 24


def chunks(
    store: Store, path: str, start_bytes: int, length_bytes: int, step_bytes: int = _STEP_BYTES
) -> Iterator[bytes]:
    """Yield a range of a file in pieces of `step_bytes`."""
    stop_bytes = start_bytes + length_bytes
    for first in range(start_bytes, stop_bytes, step_bytes):
        yield store.get_ranges(path, [(first, min(stop_bytes, first + step_bytes))])[0]


def append_all(staged: Staged, store: Store, path: str) -> None:
    """Append a file of a store; a local one is copied by the kernel."""
    if store.is_local:
        staged.append_file(store.real_path(path))
        return
    for chunk in chunks(store, path, 0, store.size(path)):
        staged.write(chunk)


def back_up(store: Store, path: str) -> str:
    """Copy a file, durably, to the first free name of `<path>.bak`, `.bak1`, `.bak2`, …; return that path.

    An existing backup with the same bytes is reused, so that re-running a killed repair doesn't add another one.
    """
    name = path
    for number in itertools.count():
        name = f"{path}{BACKUP}{number or ''}"
        store.sweep(name)
        if not store.exists(name):
            break
        if _is_same(store, path, name):
            return name
    with aborting(store.stage(name)) as copy:
        append_all(copy, store, path)
        copy.commit()
    return name


def _is_same(store: Store, path: str, name: str) -> bool:
    size_bytes = store.size(path)
    if store.is_folder(name) or store.size(name) != size_bytes:
        return False
    pairs = zip(chunks(store, path, 0, size_bytes), chunks(store, name, 0, size_bytes), strict=True)
    return all(first == second for first, second in pairs)


SMALL_BYTES = 1 << 20
"""Size limit for `read_small`."""

HIDDEN = (STAGED, UNFINISHED)
"""Suffixes of hidden files."""

_WORTH_A_LISTING = 16
_MOST_FOLDERS = 1 << 10


def read_small(store: Store, *paths: str) -> Store:
    """Return a store with only the current content of these files, in memory.

    Returns `store` itself if a file is large, remote or unreadable, so that reading it raises the error.
    """
    if not store.is_local:
        return store
    files: dict[str, bytes] = {}
    with contextlib.suppress(PenstockError, OSError):
        for path in paths:
            files[path] = store.get(path, 0, SMALL_BYTES + 1)
            if len(files[path]) > SMALL_BYTES:
                return store
        return MemoryStore(files)
    return store


class NamesBeside:
    """Lookup of local names next to files: by one listing of a folder with many files, else by a check per name.

    Args:
        paths: paths of the files.
        suffixes: suffixes of the names that will be looked up.
    """

    __slots__ = ("_folders", "_hidden", "_lists", "_suffixes")

    def __init__(self, paths: Sequence[str], suffixes: tuple[str, ...]) -> None:
        self._lists = len(paths) >= _WORTH_A_LISTING
        self._suffixes = suffixes
        self._folders: dict[str, frozenset[str]] = {}
        self._hidden: dict[str, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        """Return whether this name exists, or existed when its folder was listed."""
        if not self._lists:
            return is_there(path)
        folder, name = os.path.split(path)
        return name in self.names_in(folder)

    def is_listed(self) -> bool:
        return self._lists

    def has_unfinished(self, path: str) -> bool:
        """Return whether hidden files of a writer of `path` exist; `HIDDEN` are among the suffixes."""
        folder, name = os.path.split(path)
        return hidden_name(name, "") in self._hidden_in(folder)

    def _hidden_in(self, folder: str) -> frozenset[str]:
        """Return the prefixes of the hidden names in a folder."""
        found = self._hidden.get(folder)
        if found is None:
            found = frozenset(filter(None, map(written_stem, self.names_in(folder))))
            self._hidden[folder] = found
        return found

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names in a folder that end in one of the suffixes."""
        found = self._folders.get(folder)
        if found is None:
            found = frozenset(name for name in os.listdir(folder or ".") if name.endswith(self._suffixes))
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
                self._hidden.clear()
            self._folders[folder] = found
        return found

"""Files written in one go: visible whole, or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Generator, Sequence
from typing import TypeVar

from penstock._limits import MOST_DOCUMENT_BYTES
from penstock.abc import Staged
from penstock.errors import ConfigError, Denied, PenstockError, TooLarge, Unreachable, Unsupported
from penstock.store._files import STAGED_SUFFIX, files_below, hidden_stem, is_folder, is_there
from penstock.store.base import NamedLate, StagedFolder, Store
from penstock.store.memory import MemoryStore
from penstock.types import Buffer


def read_document(store: Store, path: str, most_bytes: int = MOST_DOCUMENT_BYTES) -> bytes:
    """All bytes of a file.

    Raises:
        NotFound: no such file.
        TooLarge: more than `most_bytes`; nothing was read.
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
    """Write a file of these bytes, durably.

    Raises:
        ConfigError: the file exists and `overwrite` is false.
    """
    with aborting(store.stage(path, overwrite=overwrite)) as staged:
        staged.write(data)
        staged.commit()


def put_new(store: Store, path: str, data: Buffer) -> bool:
    try:
        put(store, path, data, overwrite=False)
    except ConfigError:
        if not store.exists(path):
            raise
        return False
    return True


def commit_as(staged: Staged, path: str) -> bool:
    """Commit a staged file under another name in its directory; return False if that name is taken.

    Raises:
        Unsupported: a store whose files have their names from the start.
    """
    if not isinstance(staged, NamedLate):
        raise Unsupported("this store can't store unfinished work", path=path, hint="Choose an output in another store")
    return staged.commit_as(path)


def put_local_file(store: Store, path: str, target: str) -> bool:
    """Make a local file or directory the new `target`, durably; return False if that exists.

    On this machine it is moved, from the same file system. Elsewhere it is uploaded, files at the top of a
    directory last.
    """
    if store.is_local:
        return store.move_new(path, target)
    if is_folder(path):
        names = sorted(files_below(path), key=lambda name: (name.count("/"), name), reverse=True)
        new = [_upload(store, name, target + name.removeprefix(path)) for name in names]
        return all(new)
    return _upload(store, path, target)


def _upload(store: Store, path: str, target: str) -> bool:
    try:
        with aborting(store.stage(target)) as staged:
            staged.append_file(path)
            staged.commit()
    except ConfigError:
        if not store.exists(target):
            raise
        return False
    return True


def require_writable(store: Store, path: str) -> None:
    if not store.is_local:
        store.stage(path, overwrite=True).abort()


def beginning_of(store: Store, path: str, length_bytes: int) -> bytes | None:
    """Return the first bytes of a file; None if there is no file, or the store shows it to nobody.

    Raises:
        OSError: it can't be read, or the store does not answer: its format is unknown.
    """
    try:
        return store.get(path, 0, length_bytes)
    except Denied:  # some stores say so of what is not there, too
        return None
    except Unreachable:
        raise
    except (PenstockError, IsADirectoryError, NotADirectoryError):
        return None


_STEP_BYTES = 1 << 22


def back_up(store: Store, path: str) -> str:
    """Copy a file, durably, to the first free name of `<path>.bak`, `.bak1`, `.bak2`, …; return that path.

    An existing backup with the same bytes is used: a repair that was killed and is run again adds none.
    """
    name = path
    for number in itertools.count():
        name = f"{path}.bak{number or ''}"
        store.sweep(name)
        if not store.exists(name):
            break
        if _is_same(store, path, name):
            return name
    with aborting(store.stage(name)) as copy:
        _copy(store, path, copy)
        copy.commit()
    return name


def _is_same(store: Store, path: str, name: str) -> bool:
    size_bytes = store.size(path)
    if store.is_folder(name) or store.size(name) != size_bytes:
        return False
    starts = range(0, size_bytes, _STEP_BYTES)
    return all(store.get(path, start, _STEP_BYTES) == store.get(name, start, _STEP_BYTES) for start in starts)


def _copy(store: Store, path: str, copy: Staged) -> None:
    if store.is_local:
        copy.append_file(store.real_path(path))  # by the kernel
        return
    for start_bytes in range(0, store.size(path), _STEP_BYTES):
        copy.write(store.get(path, start_bytes, _STEP_BYTES))


SMALL_BYTES = 1 << 20
"""The most that such a file holds."""

HIDDEN = (STAGED_SUFFIX, ".unfinished")
"""What the names of hidden files end in."""

_WORTH_A_LISTING = 16
_MOST_FOLDERS = 1 << 10
_HIDDEN_END = re.compile(r"\.(?:unfinished|(?:lock|writing)\.staged|[0-9a-f]{8}\.staged)$")


def read_small(store: Store, *paths: str) -> Store:
    """A store of these files alone, as they are now, in memory.

    Or `store` itself, where one of them is not small or not on this machine, or can't be read: it says why.
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
    """Which local names stand beside files. The folder of many is listed once; of a few, each name is asked for.

    Args:
        paths: the files.
        suffixes: what the names end in that will be asked for.
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
        return f".{hidden_stem(name)}" in self._hidden_in(folder)

    def _hidden_in(self, folder: str) -> frozenset[str]:
        """Return the starts of the hidden names in a folder."""
        found = self._hidden.get(folder)
        if found is None:
            ends = ((name, _HIDDEN_END.search(name)) for name in self.names_in(folder))
            found = frozenset(name[: end.start()] for name, end in ends if end is not None)
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

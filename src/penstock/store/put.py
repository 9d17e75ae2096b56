"""Files written in one go: visible whole, or not at all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from typing import TypeVar

from penstock.abc import Staged
from penstock.errors import ConfigError, Denied, PenstockError, Unreachable, Unsupported
from penstock.store._files import files_below, is_folder
from penstock.store.base import NamedLate, StagedFolder, Store
from penstock.types import Buffer

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
    """Write a new file, durably; return False if it exists."""
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
    """Raise `Unsupported` if a store is read-only."""
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

"""Files written in one go: visible whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TypeVar

from penstock.abc import Staged, Store
from penstock.errors import ConfigError, Unsupported
from penstock.store._files import files_below
from penstock.store._status import is_folder
from penstock.store.local import LocalStore
from penstock.store.powers import NamedLate, StagedFolder
from penstock.types import Buffer

StagedT = TypeVar("StagedT", bound=Staged | StagedFolder)


@contextlib.contextmanager
def aborting(staged: StagedT) -> Generator[StagedT]:
    """Drop a staged file or folder at the end of the block, unless it is committed by then."""
    try:
        yield staged
    finally:
        staged.abort()


def put(store: Store, path: str, data: Buffer, *, overwrite: bool = True) -> None:
    """Make a file hold `data`, durably.

    Raises:
        ConfigError: the file exists and `overwrite` is false.
    """
    with aborting(store.stage(path, overwrite=overwrite)) as staged:
        staged.write(data)
        staged.commit()


def put_new(store: Store, path: str, data: Buffer) -> bool:
    """Make a new file that holds `data`, durably; false where one of that name is there already, by whoever made it."""
    try:
        put(store, path, data, overwrite=False)
    except ConfigError:
        if not store.exists(path):
            raise
        return False
    return True


def commit_as(staged: Staged, path: str) -> bool:
    """Commit a staged file under another name in its folder; false where one of that name is there already.

    Raises:
        Unsupported: a store whose files have their names from the start.
    """
    if not isinstance(staged, NamedLate):
        raise Unsupported("this store can't store unfinished work", path=path, hint="Choose an output in another store")
    return staged.commit_as(path)


def put_local_file(store: Store, path: str, target: str) -> bool:
    """Make a file or folder of this machine the new `target`, durably; false where one of that name is there already.

    On this machine it is moved, from the same file system; elsewhere it is uploaded, what names the rest of a folder
    last.
    """
    if isinstance(store, LocalStore):
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

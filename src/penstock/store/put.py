"""Files written in one go: visible whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TypeVar

from penstock.abc import Staged, Store
from penstock.errors import ConfigError, Unsupported
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
        raise Unsupported("this store can't hold unfinished work", path=path, hint="Name an output in another one")
    return staged.commit_as(path)

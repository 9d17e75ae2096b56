"""Files written in one go: visible whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TypeVar

from penstock.abc import Staged, Store
from penstock.store.powers import StagedFolder
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

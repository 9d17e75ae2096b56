"""What a writer left that was killed once the data that replace others were visible: side files, names, locks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.abc import Format
from penstock.store.base import Store
from penstock.store.outputs import Owned, sweep_complete, sweep_killed
from penstock.types import OpenOptions


def finish_replacement(chosen: Format, store: Store, path: str, files: Sequence[str], own: Owned | None) -> None:
    """End it, for data that the same command does not write again.

    Args:
        chosen: format of the data.
        store: where they are.
        path: their path.
        files: of them.
        own: which files of a folder are theirs.

    Raises:
        PrepareError: the writer is at work.
    """
    sweep_killed(store, files)
    if not store.is_local:  # nothing is replaced there in steps that a kill may come between
        return
    if chosen.traits.repair:
        chosen.repair(store, path, OpenOptions(), (), write=True)
    sweep_complete(store, files, own)
    for file in files if own is None else ():
        store.stage(file, overwrite=True).abort()  # whoever begins to write sweeps what was not yet visible

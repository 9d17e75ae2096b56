"""Remains of a writer killed after its replacement data became visible: side files, names, locks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.abc import Format
from penstock.store.base import Store
from penstock.store.outputs import Owned, sweep_complete, sweep_killed
from penstock.types import OpenOptions


def finish_replacement(chosen: Format, store: Store, path: str, files: Sequence[str], own: Owned | None) -> None:
    """Complete the replacement, for data that the same command doesn't write again.

    Args:
        chosen: format of the data.
        store: store of the data.
        path: path of the data.
        files: files of the data.
        own: function that returns the files of a folder that belong to the data.

    Raises:
        PrepareError: the writer is still running.
    """
    sweep_killed(store, files)
    if not store.is_local:  # replacements have no steps there between which a kill could fall
        return
    if chosen.traits.repair:
        chosen.repair(store, path, OpenOptions(), (), write=True)
    sweep_complete(store, files, own)
    for file in files if own is None else ():
        store.stage(file, overwrite=True).abort()  # the next writer removes what wasn't visible yet

"""The old dataset while another takes its place: second names of its files, hidden beside them.

Two files can't change in one step. So before the old index goes, `.<name>.replaced.idx`, `.bin` and side file are made
as second names of the old files, which costs no copy; they go when the new index stands. A writer that is killed in
between leaves `<prefix>.idx` missing and these in place: readers of ours then open the old dataset by them, the next
writer replaces it, and `repair` puts it back.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol, runtime_checkable

from penstock.abc import Store
from penstock.errors import NotFound
from penstock.formats.tokens.megatron.layout import bin_path, has_kept, idx_path, kept_prefix
from penstock.formats.tokens.megatron.manifest import side_file_path

KEPT = "megatron.replaced"
"""Code of findings and actions."""

_NAMES = (bin_path, side_file_path, idx_path)  # the one that makes a dataset visible comes last


@runtime_checkable
class _Links(Protocol):
    """A store whose files can have several names."""

    def link(self, path: str, name: str) -> bool:
        """Give a file a second name, durably and in one step in the place of a file of that name.

        Returns:
            False where the file system has no such names; nothing is changed then.
        """
        ...


def set_aside(store: Store, prefix: str) -> bool:
    """Give the files of a dataset their second names; False where the store has no such names."""
    if not isinstance(store, _Links):
        return False
    drop_kept(store, prefix)
    for name in _NAMES:
        path = name(prefix)
        if store.exists(path) and not store.link(path, name(kept_prefix(prefix))):
            drop_kept(store, prefix)
            return False
    return True


def put_back(store: Store, prefix: str) -> None:
    """Make the old dataset visible again."""
    if not (isinstance(store, _Links) and has_kept(store, prefix)):
        return
    for name in _NAMES:
        kept = name(kept_prefix(prefix))
        if store.exists(kept):
            store.link(kept, name(prefix))
        elif store.exists(name(prefix)):
            store.delete(name(prefix))
    drop_kept(store, prefix)


def drop_kept(store: Store, prefix: str) -> None:
    """Remove the second names, the index first: without it they count for nothing."""
    for name in reversed(_NAMES):
        with contextlib.suppress(NotFound):
            store.delete(name(kept_prefix(prefix)))


def left_names(store: Store, prefix: str) -> list[str]:
    """Second names that are there, by their base names."""
    paths = [name(kept_prefix(prefix)) for name in _NAMES]
    return [os.path.basename(path) for path in paths if store.exists(path)]

"""The old dataset during its replacement: second names of its files, hidden next to them.

Two files can't change in one step. So version 0.2 gave the old files the second names `.<name>.replaced.idx`, `.bin`
and side file before it removed the old index, and dropped them once the new index existed. If its writer was killed in
between, `<prefix>.idx` is missing. Readers then open the old dataset by the second names, the next writer replaces it,
and `repair` restores it.

In stores without second names, the tokens change in one step. At that moment both indexes have hidden names: the old
one, which was renamed, and the new one, with a side file called `.next`. The side files show which index the tokens
belong to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import NotFound
from penstock.formats.tokens.megatron.layout import (
    Header,
    bin_path,
    has_kept,
    idx_path,
    kept_prefix,
    named_prefix,
    new_prefix,
    old_prefix,
    read_header,
    read_manifest,
    side_file_path,
)
from penstock.store.base import Store
from penstock.store.names import NEXT
from penstock.store.side_file import move_file, promote
from penstock.store.transaction import output_files, read_log

KEPT = "megatron.replaced"
"""Code of findings and actions."""

ResultT = TypeVar("ResultT")

_NAMES = (bin_path, side_file_path, idx_path)  # the one that makes a dataset visible comes last


def read_committed(store: Store, path: str, read: Callable[[Store], ResultT]) -> ResultT:
    """Call `read` with a store in which the dataset is as its last commit made it; see `penstock.store.transaction`."""
    return store.read_committed(output_of(path), read) if store.is_local else read(store)


def reading_commit(store: Store, path: str) -> Store:
    """Return the store of `read_committed`, for readers that don't mind if a commit comes in between."""
    return store.reading_commit(output_of(path)) if store.is_local else store


def staged_names(store: Store, path: str) -> list[str] | None:
    """Return the staged files of an interrupted commit, or None."""
    if not store.is_local:
        return None
    files = output_files(output_of(path))
    log = read_log(files)
    return None if log is None else [f"{os.path.basename(files.staging_path)}/{name}" for name in log.files]


def output_of(path: str) -> str:
    """Return the path that identifies the output; see `output_files`."""
    return bin_path(path.removesuffix(".bin").removesuffix(".idx"))


def prefix_of(store: Store, path: str) -> str:
    """Return the prefix to read: as named, or that of the complete dataset if a replacement was killed."""
    prefix = named_prefix(store, path)
    return prefix if store.exists(idx_path(prefix)) else (_whole(store, prefix) or prefix)


def is_half_replaced(store: Store, prefix: str) -> bool:
    """Return whether a writer was killed during a replacement, so that a complete dataset has hidden names."""
    return not store.exists(idx_path(prefix)) and _whole(store, prefix) is not None


def _whole(store: Store, prefix: str) -> str | None:
    if has_kept(store, prefix):
        return kept_prefix(prefix)
    new, old = new_prefix(prefix), old_prefix(prefix)
    if not store.exists(bin_path(prefix)):
        return None
    if store.exists(idx_path(new)):
        header = read_header(store, new)
        if isinstance(header, Header) and read_manifest(store, new, header.num_documents) is not None:
            return new
    return old if store.exists(idx_path(old)) else None


def end_replacement(store: Store, prefix: str) -> None:
    """Give the index that fits the tokens its final name, if it has none, and remove the other one."""
    new, old = new_prefix(prefix), old_prefix(prefix)
    waiting = [name for name in (idx_path(new), idx_path(old)) if store.exists(name)]
    side = side_file_path(prefix) + NEXT
    if not waiting and not store.exists(side):
        return
    if not store.exists(idx_path(prefix)):
        whole = _whole(store, prefix)
        if whole == new and store.exists(side):
            promote(store, side)
        if whole in (new, old):
            move_file(store, idx_path(whole), idx_path(prefix))
    for path in (*waiting, side):
        with contextlib.suppress(NotFound):
            store.delete(path)


def put_back(store: Store, prefix: str) -> None:
    """Make the old dataset visible again."""
    if not (store.is_local and has_kept(store, prefix)):
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
    """Return existing second names, by their base names."""
    paths = [name(kept_prefix(prefix)) for name in _NAMES]
    paths += [idx_path(old_prefix(prefix)), idx_path(new_prefix(prefix)), side_file_path(prefix) + NEXT]
    return [os.path.basename(path) for path in paths if store.exists(path)]

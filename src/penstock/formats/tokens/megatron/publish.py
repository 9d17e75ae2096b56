"""Making two files visible as one dataset: at no moment does an index exist next to tokens that are not its own.

On this machine that is a `penstock.store.transaction`. In other stores, in place of another dataset: the new index and
side file come under names that wait, the old index gets one too, then tokens come, and these names become final, or go.
A new dataset there is side file, tokens, index. Killed in between, it leaves tokens without an index, and a side file
by which the next writer knows them as ours and replaces them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.abc import Staged
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import NotFound, PenstockError
from penstock.formats._manifest import DATA
from penstock.formats._side_checks import check_block_digests
from penstock.formats.tokens.megatron.kept import drop_kept, end_replacement, is_half_replaced
from penstock.formats.tokens.megatron.layout import bin_path, idx_path, new_prefix, old_prefix
from penstock.formats.tokens.megatron.manifest import side_file_path
from penstock.store.base import Store
from penstock.store.local import output_exists
from penstock.store.outputs import require_own_side_file
from penstock.store.side_file import encode_manifest, load_manifest, move_file, stage_side_file
from penstock.store.transaction import Transaction
from penstock.types import Manifest


class StagedFiles(Protocol):
    """Staged files of one dataset."""

    def stage(self, path: str, /) -> Staged:
        """Start a file."""
        ...

    def abort(self) -> None:
        """Drop the files that aren't visible."""
        ...


@dataclass(frozen=True, slots=True)
class _LocalFiles:
    """Files of a transaction, and the names of those that must not replace others."""

    transaction: Transaction
    new: tuple[str, ...]

    def stage(self, path: str) -> Staged:
        """Start a file."""
        return self.transaction.stage(os.path.basename(path))

    def abort(self) -> None:
        """Drop the files, or do nothing after the commit."""
        self.transaction.close()


@dataclass(frozen=True, slots=True)
class _StoredFiles:
    """Files that a store stages one by one."""

    store: Store
    overwrite: bool
    staged: dict[str, Staged] = field(default_factory=dict[str, Staged])

    def stage(self, path: str) -> Staged:
        """Start a file. Tokens without an index are those of a killed writer: see `may_write`."""
        overwrite = self.overwrite or (path.endswith(".bin") and self.store.exists(path))
        self.staged[path] = self.store.stage(path, overwrite=overwrite)
        return self.staged[path]

    def abort(self) -> None:
        """Drop the files that aren't visible."""
        for one in self.staged.values():
            one.abort()


def staged_files(store: Store, prefix: str, *, overwrite: bool) -> StagedFiles:
    """Start the files of a dataset that the caller has claimed."""
    transaction = store.transaction(bin_path(prefix))
    if transaction is not None:
        # Tokens without an index are those of a killed writer: see `may_write`.
        paths = () if overwrite else (idx_path(prefix), *([] if store.exists(bin_path(prefix)) else [bin_path(prefix)]))
        return _LocalFiles(transaction.open(), tuple(map(os.path.basename, paths)))
    return _StoredFiles(store, overwrite)


def may_write(store: Store, prefix: str) -> bool:
    """Return whether the dataset may be written without `overwrite`.

    That is so if there is nothing, or only tokens that a killed writer of ours left without an index.
    """
    if _holds_dataset(store, prefix):
        return False
    if not store.exists(bin_path(prefix)):
        return True
    manifest = load_manifest(store, side_file_path(prefix), to_write=True)
    return manifest is not None and _holds(store, prefix, manifest)


def publish(
    store: Store,
    prefix: str,
    files: StagedFiles,
    manifest: Manifest,
    write_index: Callable[[Staged], object],
    *,
    overwrite: bool,
) -> None:
    """Make tokens, side file and index visible.

    Args:
        store: store of the files.
        prefix: of the dataset.
        files: its two staged files.
        manifest: for the side file.
        write_index: writes the index once more, if it has to wait under another name.
        overwrite: replace an existing dataset.

    Raises:
        ConfigError: a dataset appeared meanwhile and `overwrite` is false, or another's file at the side file's place.
    """
    old = _holds_dataset(store, prefix)
    if not overwrite and old:
        raise output_exists(prefix, idx_path(prefix))
    if isinstance(files, _LocalFiles):
        files.stage(side_file_path(prefix)).write(encode_manifest(manifest))
        if old:
            end_replacement(store, prefix)  # of version 0.2
        # Another file may have come since the output was claimed.
        files.transaction.commit(new=files.new, check=lambda: require_own_side_file(store, side_file_path(prefix)))
        with contextlib.suppress(OSError):
            drop_kept(store, prefix)
    elif isinstance(files, _StoredFiles):
        _publish_in_store(store, prefix, files, manifest, write_index, old=old)


def _publish_in_store(
    store: Store,
    prefix: str,
    files: _StoredFiles,
    manifest: Manifest,
    write_index: Callable[[Staged], object],
    *,
    old: bool,
) -> None:
    side = files.staged[side_file_path(prefix)] = store.stage(side_file_path(prefix), overwrite=True)
    side.write(encode_manifest(manifest))
    tokens, index = files.staged[bin_path(prefix)], files.staged[idx_path(prefix)]
    for one in (side, tokens, index):
        one.sync()
    require_own_side_file(store, side.path)  # another may have come since the output was claimed
    if not old:
        _add(store, prefix, (side, tokens, index), manifest)
        return
    end_replacement(store, prefix)  # of a writer that was killed: from here on its index is in its place
    if store.exists(idx_path(prefix)):
        _replace(store, prefix, tokens, manifest, write_index)
    else:
        store.commit((tokens, side, index))


def _replace(
    store: Store, prefix: str, tokens: Staged, manifest: Manifest, write_index: Callable[[Staged], object]
) -> None:
    index = store.stage(idx_path(new_prefix(prefix)), overwrite=True)
    try:
        write_index(index)
        side = stage_side_file(store, side_file_path(prefix), manifest, replaces=True)
        try:
            store.commit([index, side])
        finally:
            side.abort()
        move_file(store, idx_path(prefix), idx_path(old_prefix(prefix)))
        tokens.commit()
    except BaseException:
        index.abort()
        with contextlib.suppress(PenstockError, OSError):
            end_replacement(store, prefix)
        raise
    end_replacement(store, prefix)


def _add(store: Store, prefix: str, staged: tuple[Staged, Staged, Staged], manifest: Manifest) -> None:
    try:
        store.commit(staged)
    except BaseException:
        if not store.exists(idx_path(prefix)):
            ours = _holds(store, prefix, manifest)
            for path in (bin_path(prefix), side_file_path(prefix)) if ours else (side_file_path(prefix),):
                with contextlib.suppress(PenstockError, OSError):
                    store.delete(path)
        raise


def _holds_dataset(store: Store, prefix: str) -> bool:
    """Return whether a dataset exists at `prefix`, or one that a killed writer was about to replace."""
    return store.exists(idx_path(prefix)) or is_half_replaced(store, prefix)


def _holds(store: Store, prefix: str, manifest: Manifest) -> bool:
    """Return whether the visible `.bin` is the one that a side file was made for, by the digest of every byte."""
    path, digests = bin_path(prefix), manifest.block_digests.get(DATA, ())
    try:
        if manifest.format != "megatron" or -(-store.size(path) // BLOCK_BYTES) != len(digests):
            return False
    except NotFound:
        return False
    return not any(True for _ in check_block_digests(store, path, "megatron", digests, ""))

"""Making two files visible as one dataset: an index never exists next to other tokens than its own.

On this machine, this is a `penstock.store.transaction`. In other stores, a new dataset is committed as side file,
tokens, index. A writer that is killed in between leaves tokens without an index. The next writer recognizes them by the
side file, and replaces them. To replace a dataset, the new index and side file are written under temporary names, and
the old index gets a temporary name. Then the tokens are replaced, and the temporary names become final or are removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import cast

from penstock.abc import Staged
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats._manifest import DATA, ClaimedFile
from penstock.formats._side_checks import check_block_digests
from penstock.formats.tokens.megatron.kept import drop_kept, end_replacement, is_half_replaced
from penstock.formats.tokens.megatron.layout import bin_path, idx_path, is_index, new_prefix, old_prefix, side_file_path
from penstock.store.base import Store
from penstock.store.local import output_exists
from penstock.store.lock import Claim
from penstock.store.outputs import claim_files, require_own_side_file
from penstock.store.side_file import encode_manifest, load_manifest, move_file, stage_side_file
from penstock.store.transaction import Transaction
from penstock.types import Buffer, Manifest


class Pair(ClaimedFile):
    """Both files of a dataset and its side file, claimed for one writer; `staged` is the `.bin`."""

    def _claim_files(self) -> Claim:
        prefix = self._path
        return claim_files(self._store, bin_path(prefix), idx_path(prefix), side=side_file_path(prefix))

    def _stage_data(self) -> Staged:
        _require_replaceable(self._store, self._path, overwrite=self._overwrite)
        return self._stage_bin()

    def _stage_bin(self) -> Staged:
        raise TypeError(type(self).__name__)

    def commit(self, manifest: Manifest, index: Iterable[Buffer] | None = None) -> None:
        """Make tokens, side file and index visible; `index` yields the content of the index once more.

        Raises:
            ConfigError: a dataset appeared meanwhile and `overwrite` is false, or the path of the side file is taken.
        """
        old = _holds_dataset(self._store, self._path)
        if not self._overwrite and old:
            raise output_exists(self._path, idx_path(self._path))
        self._publish(manifest, index or (), old=old)

    def _publish(self, manifest: Manifest, index: Iterable[Buffer], *, old: bool) -> None:
        raise TypeError(type(self).__name__)


class LocalPair(Pair):
    """Pair that a transaction of the local store replaces."""

    _transaction: Transaction
    _new: tuple[str, ...]  # names that must not replace other files

    def _stage_bin(self) -> Staged:
        # Tokens without an index are those of a killed writer: see `may_write`.
        store, path, index = self._store, bin_path(self._path), idx_path(self._path)
        paths = () if self._overwrite else (index, *([] if store.exists(path) else [path]))
        self._new = tuple(map(os.path.basename, paths))
        self._transaction = cast(Transaction, store.transaction(path)).open()
        try:
            return self._stage(path)
        except BaseException:
            self._transaction.close()
            raise

    def stage_index(self) -> Staged:
        return self._stage(idx_path(self._path))

    def _stage(self, path: str) -> Staged:
        return self._transaction.stage(os.path.basename(path))

    def _publish(self, manifest: Manifest, index: Iterable[Buffer], *, old: bool) -> None:
        store, side = self._store, side_file_path(self._path)
        self._stage(side).write(encode_manifest(manifest))
        if old:
            end_replacement(store, self._path)  # of version 0.2
        # Another file may have come since the output was claimed.
        self._transaction.commit(new=self._new, check=lambda: require_own_side_file(store, side))
        with contextlib.suppress(OSError):
            drop_kept(store, self._path)

    def abort(self) -> None:
        self._transaction.close()
        self._claim.release()


class StoredPair(Pair):
    """Pair of files that a store stages one by one."""

    _index: Staged | None = None
    _side: Staged | None = None

    def _stage_bin(self) -> Staged:
        # Tokens without an index are those of a killed writer: see `may_write`.
        path = bin_path(self._path)
        return self._store.stage(path, overwrite=self._overwrite or self._store.exists(path))

    def stage_index(self) -> Staged:
        self._index = self._store.stage(idx_path(self._path), overwrite=self._overwrite)
        return self._index

    def _publish(self, manifest: Manifest, index: Iterable[Buffer], *, old: bool) -> None:
        store, prefix, tokens = self._store, self._path, self.staged
        side = self._side = store.stage(side_file_path(prefix), overwrite=True)
        side.write(encode_manifest(manifest))
        files = [side, tokens, *([] if self._index is None else [self._index])]
        for one in files:
            one.sync()
        require_own_side_file(store, side.path)  # another may have come since the output was claimed
        if not old:
            _add(store, prefix, files, manifest)
            return
        end_replacement(store, prefix)  # of a writer that was killed: from here on its index is in its place
        if store.exists(idx_path(prefix)):
            self._replace(manifest, index)
        else:
            store.commit([tokens, side, *files[2:]])

    def _replace(self, manifest: Manifest, index: Iterable[Buffer]) -> None:
        store, prefix = self._store, self._path
        new = store.stage(idx_path(new_prefix(prefix)), overwrite=True)
        try:
            for piece in index:
                new.write(piece)
            side = stage_side_file(store, side_file_path(prefix), manifest, replaces=True)
            try:
                store.commit([new, side])
            finally:
                side.abort()
            move_file(store, idx_path(prefix), idx_path(old_prefix(prefix)))
            self.staged.commit()
        except BaseException:
            new.abort()
            with contextlib.suppress(PenstockError, OSError):
                end_replacement(store, prefix)
            raise
        end_replacement(store, prefix)

    def abort(self) -> None:
        for one in (self.staged, self._index, self._side):
            if one is not None:
                one.abort()
        self._claim.release()


def claim_pair(store: Store, prefix: str, *, overwrite: bool) -> Pair:
    """Claim the files of a dataset; for errors, see `ClaimedFile`."""
    return (LocalPair if store.is_local else StoredPair)(store, prefix, overwrite=overwrite)


def _require_replaceable(store: Store, prefix: str, *, overwrite: bool) -> None:
    """Raise an error unless there is nothing here, unfinished output, or a dataset to be replaced."""
    if may_write(store, prefix):
        return
    index = idx_path(prefix)
    if not overwrite:
        store.sweep(index)
        raise output_exists(prefix, index if store.exists(index) else bin_path(prefix))
    if store.exists(index) and not is_index(store, index):
        hint = "Choose another output, or remove it"
        raise ConfigError("the existing file is not a Megatron index", path=index, hint=hint)


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


def _add(store: Store, prefix: str, staged: Sequence[Staged], manifest: Manifest) -> None:
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

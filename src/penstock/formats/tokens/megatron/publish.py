"""Making two files visible as one dataset: at no moment does an index stand beside tokens that are not its own.

A new dataset: side file, tokens, index. Killed in between, it leaves tokens without an index, and a side file by which
the next writer knows them as ours and replaces them. In place of another dataset: the old files get second names (see
`kept`), the old index goes, then tokens, side file, index come, and the second names go. Killed in between, it leaves
the old dataset under the second names. Where a step fails, it comes back. Where files have no second names: the new
index and side file come under names that wait, the old index gets one too, then tokens come, and these names become
final, or go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from penstock.abc import Staged, Store
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import NotFound, PenstockError
from penstock.formats._manifest import DATA
from penstock.formats._side_checks import check_block_digests
from penstock.formats.tokens.megatron.kept import drop_kept, end_replacement, is_half_replaced, put_back, set_aside
from penstock.formats.tokens.megatron.layout import bin_path, idx_path, new_prefix, old_prefix
from penstock.formats.tokens.megatron.manifest import side_file_path
from penstock.store.local import output_exists
from penstock.store.outputs import require_own_side_file
from penstock.store.side_file import encode_manifest, load_manifest, move_file, stage_side_file
from penstock.types import Manifest


def may_write(store: Store, prefix: str) -> bool:
    """Whether what stands at `prefix` may be replaced without being asked for: nothing, or tokens that a killed writer
    of ours left without an index."""
    if _holds_dataset(store, prefix):
        return False
    if not store.exists(bin_path(prefix)):
        return True
    manifest = load_manifest(store, side_file_path(prefix), to_write=True)
    return manifest is not None and _holds(store, prefix, manifest)


def publish(
    store: Store,
    prefix: str,
    tokens: Staged,
    index: Staged,
    manifest: Manifest,
    write_index: Callable[[Staged], object],
    *,
    overwrite: bool,
) -> None:
    """Make tokens, side file and index visible.

    Args:
        store: where they are.
        prefix: of the dataset.
        tokens: the `.bin`.
        index: the `.idx`.
        manifest: for the side file.
        write_index: writes the index once more, where it has to wait under another name.
        overwrite: replace what is there.

    Raises:
        ConfigError: a dataset appeared meanwhile and `overwrite` is false, or another's file at the side file's place.
    """
    old = _holds_dataset(store, prefix)
    if not overwrite and old:
        raise output_exists(prefix, index.path)
    side = store.stage(side_file_path(prefix), overwrite=True)
    try:
        side.write(encode_manifest(manifest))
        for one in (side, tokens, index):
            one.sync()
        require_own_side_file(store, side.path)  # another may have come since the output was claimed
        if old:
            end_replacement(store, prefix)  # of a writer that was killed: from here on its index is in its place
            _replace(store, prefix, (tokens, side, index), manifest, write_index)
        else:
            _add(store, prefix, (side, tokens, index), manifest)
    finally:
        for one in (tokens, side, index):
            one.abort()


def _replace(
    store: Store,
    prefix: str,
    staged: tuple[Staged, Staged, Staged],
    manifest: Manifest,
    write_index: Callable[[Staged], object],
) -> None:
    path = idx_path(prefix)
    if store.exists(path) and not set_aside(store, prefix):
        _replace_unlinked(store, prefix, staged[0], manifest, write_index)
        return
    try:
        if store.exists(path):
            store.delete(path)
        for one in staged:
            one.commit()
    except BaseException:
        with contextlib.suppress(PenstockError, OSError):
            put_back(store, prefix)
        raise
    with contextlib.suppress(OSError):
        drop_kept(store, prefix)


def _replace_unlinked(
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
    """Whether a dataset stands at `prefix`, or one that a killed writer was about to replace."""
    return store.exists(idx_path(prefix)) or is_half_replaced(store, prefix)


def _holds(store: Store, prefix: str, manifest: Manifest) -> bool:
    """Whether the visible `.bin` is the one that a side file was made for, by the digest of every byte."""
    path, digests = bin_path(prefix), manifest.block_digests.get(DATA, ())
    try:
        if manifest.format != "megatron" or -(-store.size(path) // BLOCK_BYTES) != len(digests):
            return False
    except NotFound:
        return False
    return not any(True for _ in check_block_digests(store, path, "megatron", digests, ""))

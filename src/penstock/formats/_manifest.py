"""Tools for writers of every format family: provenance, digests of a file, and its side file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock._arrays import byte_view
from penstock.abc import Staged
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.errors import NotFound
from penstock.store.base import Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.store.local import output_exists
from penstock.store.lock import Claim
from penstock.store.outputs import claim_files
from penstock.store.side_file import DATA, EDGE_BYTES, edge_binding, file_binding, publish_beside, stage_side_file
from penstock.types import Buffer, Manifest

_READ_BYTES = 1 << 20
_STEP_BYTES = 1 << 24


def side_path(path: str) -> str:
    """Return the path of the side file of a single-file dataset."""
    return path + ".penstock"


def data_fingerprint(store: Store, format_name: str, index: bytes, path: str, manifest: Manifest | None) -> str:
    """Return `files_fingerprint` of a dataset of one data file."""
    return files_fingerprint(store, format_name, index, [(DATA, path)], manifest)


def files_fingerprint(
    store: Store, format_name: str, index: bytes, files: Sequence[tuple[str, str]], manifest: Manifest | None
) -> str:
    """32 hex digits over a format's own index bytes, and a side file's block digests or a sample of the files."""
    if manifest is None or not manifest.block_digests:
        paths, name = [path for _, path in files], f"{format_name} {xxhash.xxh3_128_hexdigest(index)}"
        return once_a_host(store, paths, name, lambda: sample_fingerprint(store, format_name, index, files))
    hasher = xxhash.xxh3_128(format_name.encode())
    hasher.update(xxhash.xxh3_128_digest(index))
    for name in sorted(manifest.block_digests):
        hasher.update("\n".join(("", name, *manifest.block_digests[name])).encode())
    return hasher.hexdigest()


def file_digests(store: Store, path: str) -> tuple[str, ...]:
    """Return the xxh3-128 of each 64 MiB block of a file. Memory: one block."""
    hasher = BlockHasher()
    for start_bytes in range(0, store.size(path), BLOCK_BYTES):
        hasher.update(store.get(path, start_bytes, BLOCK_BYTES))
    return hasher.finish()


def file_digest(store: Store, path: str) -> str:
    """Return the xxh3-128 of a file, read in steps of 16 MiB; an empty string if it is missing."""
    hasher = xxhash.xxh3_128()
    try:
        for start in range(0, max(store.size(path), 1), _STEP_BYTES):
            hasher.update(store.get(path, start, _STEP_BYTES))
    except NotFound:
        return ""
    return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of written data, recorded in its side file.

    Attributes:
        eos_id: id that ends every document, recorded in the side file; nothing is added to documents.
        tokenizer: recorded name of the tokenizer; `tokenizer_digest` is its digest.
        inputs: recorded digests by input path (relative).
        options: further recorded options of the preparation.
    """

    eos_id: int | None = None
    tokenizer: str | None = None
    tokenizer_digest: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def recorded(cls, known: Manifest | None, eos_id: int | None) -> Provenance:
        """Return the provenance in an existing side file, with this EOS id."""
        if known is None:
            return cls(eos_id)
        return cls(eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)


class FileDigests:
    """Block digests and binding of a file while it is written.

    Args:
        staged: the file. If its header is set at the end, its first block is read back from it.
        header_bytes: number of bytes at its start that are set at the end.
    """

    __slots__ = ("_block_bytes", "_hasher", "_header_bytes", "_known", "_size_bytes", "_staged")

    def __init__(self, staged: Staged, header_bytes: int = 0, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._staged = staged
        self._header_bytes = header_bytes
        self._block_bytes = block_bytes
        self._hasher = BlockHasher(block_bytes)
        self._known: tuple[str, ...] = ()
        self._size_bytes = 0

    def update(self, data: Buffer) -> None:
        view = byte_view(data)
        late_bytes = max(0, self._block_bytes - self._size_bytes) if self._header_bytes else 0
        self._size_bytes += len(view)
        self._hasher.update(view[late_bytes:])

    def take(self, size_bytes: int, blocks: Sequence[str], rest: Iterable[Buffer]) -> None:
        """Adopt the bytes of the file so far, including its header, which is then no longer set at the end.

        Args:
            size_bytes: number of these bytes.
            blocks: digests of the whole blocks.
            rest: bytes after these blocks.
        """
        self._header_bytes = 0
        self._size_bytes = size_bytes
        self._known = tuple(blocks)
        self._hasher = BlockHasher(self._block_bytes)
        for data in rest:
            self._hasher.update(data)

    def finish(self) -> tuple[tuple[str, ...], str]:
        """Return `(block digests, binding)` once everything is written."""
        staged, size_bytes = self._staged, self._size_bytes
        first = BlockHasher(self._block_bytes)
        late_bytes = min(size_bytes, self._block_bytes) if self._header_bytes else 0
        for start_bytes in range(0, late_bytes, _READ_BYTES):
            first.update(staged.read_at(start_bytes, min(_READ_BYTES, late_bytes - start_bytes)))
        head = staged.read_at(0, EDGE_BYTES)
        tail = staged.read_at(max(0, size_bytes - EDGE_BYTES), EDGE_BYTES)
        return first.finish() + self._known + self._hasher.finish(), edge_binding(size_bytes, head, tail)


class ClaimedFile:
    """Data file of a dataset and its side file, claimed for one writer.

    Args:
        store: store of the files.
        path: path of the data file.
        overwrite: replace an existing dataset.

    Attributes:
        staged: the data file, hidden until `commit`.

    Raises:
        ConfigError: the dataset exists and `overwrite` is false, or it may not be replaced.
        PrepareError: another writer holds it.
    """

    def __init__(self, store: Store, path: str, *, overwrite: bool) -> None:
        self._store = store
        self._path = path
        self._overwrite = overwrite
        self._claim = self._claim_files()
        try:
            self.staged = self._stage_data()
        except BaseException:
            self._claim.release()
            raise

    def _claim_files(self) -> Claim:
        return claim_files(self._store, self._path, side=side_path(self._path))

    def _stage_data(self) -> Staged:
        return self._store.stage(self._path, overwrite=self._overwrite)

    def stage_index(self) -> Staged:
        """Start the index file; a dataset of one data file has none."""
        raise TypeError(type(self).__name__)

    def commit(self, manifest: Manifest, index: Iterable[Buffer] | None = None) -> None:
        """Make the dataset visible with its side file; `index` yields the content of its index file once more."""
        side = side_path(self._path)
        commit_with_side_file(self._store, self.staged, side, manifest, overwrite=self._overwrite)

    def abort(self) -> None:
        """Discard uncommitted files and release the claim; a second call does nothing."""
        self.staged.abort()
        self._claim.release()


def commit_with_side_file(
    store: Store,
    data: Staged,
    side_path: str,
    manifest: Manifest,
    *,
    overwrite: bool,
    beside: Sequence[Staged] = (),
    stale: Sequence[str] = (),
) -> None:
    """Publish a data file, which makes the dataset visible, and the files next to it; see `store.side_file`.

    Args:
        store: store of the files.
        data: the data file.
        side_path: path of its side file.
        manifest: content of the side file.
        overwrite: replace an existing dataset.
        beside: further files, from `stage_beside`.
        stale: other indexes of replaced data, which are removed.

    Raises:
        ConfigError: the dataset appeared meanwhile and `overwrite` is false; the files next to it are unchanged.
    """
    replaces = store.exists(data.path)
    if replaces and not overwrite:
        raise output_exists(data.path)
    data.sync()
    side = stage_side_file(store, side_path, manifest, replaces=replaces)

    def landed() -> bool:
        return store.exists(data.path) and (not replaces or file_binding(store, data.path) == manifest.binding)

    publish_beside(store, [*beside, side], data.commit, landed, stale=stale)

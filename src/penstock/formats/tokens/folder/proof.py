"""Comparison of a folder of token files with the side files: each file with its own, and the files with the index."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from penstock.abc import TokenSource
from penstock.codec.joined_digest import is_joinable
from penstock.formats._proof import AnyProof, Proof, Provable, known_manifest, require_none
from penstock.formats._side_checks import RESTORE
from penstock.formats.tokens.folder.files import SIDE_NAME, FileList, manifest_of
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.formats.tokens.folder.listed import ListedFiles
from penstock.formats.tokens.folder.side import NAME, folder_digest, folder_facts
from penstock.formats.tokens.proof import all_documents
from penstock.store.base import Store
from penstock.types import Finding


def folder_proof(
    store: Store,
    listed: FileList,
    open_file: Callable[[int], TokenSource],
    pieces: Callable[[int, int], Iterable[tuple[int, int, int]]],
) -> AnyProof | None:
    """Return the proof of the tokens of many files.

    Args:
        store: store of the files.
        listed: list of the files.
        open_file: opens a file by its number.
        pieces: yields `(file, start, stop)` for each file of a range of tokens.

    Raises:
        Corrupt: the index contradicts its side file.
    """
    if isinstance(listed, ListedFiles):
        _require_index(store, listed)
        if not store.is_local:  # its digests are of documents, which would be fetched twice
            return None
    return _FolderProof(listed, open_file, pieces)


def _require_index(store: Store, listed: ListedFiles) -> None:
    where, side = f"{listed.root}/{INDEX_NAME}", f"{listed.root}/{SIDE_NAME}"
    manifest = known_manifest(NAME, store, where, side, functools.partial(folder_facts, listed.data, listed.index))
    found = folder_digest(listed.index)
    if manifest is not None and None not in (found, manifest.digest) and found != manifest.digest:
        stated = f"{manifest.digest}, as recorded in the side file"
        require_none([Finding(f"{NAME}.changed", "error", where, None, f"digest {found}", stated, RESTORE)])


class _FolderProof:
    """Implementation of `AnyProof` for many files."""

    def __init__(
        self,
        listed: FileList,
        open_file: Callable[[int], TokenSource],
        pieces: Callable[[int, int], Iterable[tuple[int, int, int]]],
    ) -> None:
        self._listed = listed
        self._open_file = open_file
        self._pieces = pieces
        self._files: dict[int, AnyProof | None] = {}

    def require(self, start: int, stop: int) -> None:
        for number, low, high in self._pieces(start, stop) if start < stop else ():
            if number not in self._files:
                self._files[number] = self._proof_of(number)
            found = self._files[number]
            if found is not None:
                found.require(low, high)

    def _proof_of(self, number: int) -> AnyProof | None:
        source = self._open_file(number)
        own = source.proof() if isinstance(source, Provable) else None
        if not isinstance(self._listed, ListedFiles):
            return own
        stated, manifest = self._listed.index.files[number].digest, manifest_of(source)
        known = None if manifest is None else manifest.digest
        if own is None or known is None or is_joinable(known) != is_joinable(stated):
            return Proof([all_documents(source, self._listed.path(number), stated)])
        if known != stated:
            raise self._listed.contradiction(number, f"documents with the digest {known}", stated)
        return own

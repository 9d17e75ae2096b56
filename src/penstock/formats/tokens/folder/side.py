"""Folder of token files with an `index.json`: its files, and its side file `.penstock`."""

from __future__ import annotations

import functools
from functools import cached_property

import numpy as np
import xxhash

import penstock
from penstock.codec.joined_digest import is_joinable, join_digests
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import COPY_AGAIN, SIDE_NAME, FileList
from penstock.formats.tokens.folder.index import INDEX_NAME, TokenFileIndex, decode_index
from penstock.store.base import Store
from penstock.store.side_file import EDGE_BYTES, Facts, edge_binding, fitting_manifest
from penstock.types import Manifest

NAME = "token-files"


def folder_facts(data: bytes, index: TokenFileIndex) -> Facts:
    """Return the facts of a folder to compare with a side file: the edges of its index, and its counts."""
    return Facts(
        format=NAME,
        binding=edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:]),
        num_samples=sum(one.documents for one in index.files),
        num_tokens=sum(one.tokens for one in index.files),
    )


def folder_manifest(data: bytes, index: TokenFileIndex, size_bytes: int, given: Provenance) -> Manifest:
    """Return the side file of a folder.

    Args:
        data: content of `index.json`.
        index: the same, decoded.
        size_bytes: size of all token files.
        given: provenance of the data.
    """
    facts = folder_facts(data, index)
    return Manifest(
        format=NAME,
        num_samples=facts.num_samples or 0,
        size_bytes=size_bytes,
        num_tokens=facts.num_tokens,
        max_token_id=max((one.max_token_id for one in index.files if one.tokens), default=None),
        eos_id=given.eos_id,
        tokenizer=given.tokenizer,
        tokenizer_digest=given.tokenizer_digest,
        digest=folder_digest(index),
        inputs=dict(given.inputs),
        options=dict(given.options),
        binding=facts.binding,
        tool=f"penstock {penstock.__version__}",
    )


def folder_digest(index: TokenFileIndex) -> str | None:
    """Return the document digest of all files together; None if that of one file can't be joined."""
    digests = [one.digest for one in index.files]
    return join_digests(digests) if all(map(is_joinable, digests)) else None


def read_manifest(store: Store, root: str, data: bytes, index: TokenFileIndex) -> Manifest | None:
    """Return the side file of a folder if it belongs to this index, else None."""
    return fitting_manifest(store, f"{root}/{SIDE_NAME}", functools.partial(folder_facts, data, index))


class ListedFiles(FileList):
    """Files listed in the index of a folder.

    Args:
        store: store of the folder.
        root: the folder.
        data: content of `index.json`.
    """

    _changed = (f"a token file differs from the one listed in {INDEX_NAME}", COPY_AGAIN)

    def __init__(self, store: Store, root: str, data: bytes) -> None:
        self._store = store
        self.root = root
        self.data = data
        self.index = decode_index(data, f"{root}/{INDEX_NAME}")
        self.format = self.index.format
        self.tokens = np.array([one.tokens for one in self.index.files], np.int64)
        self.documents = np.array([one.documents for one in self.index.files], np.int64)

    def __len__(self) -> int:
        return len(self.index.files)

    def path(self, number: int, /) -> str:
        return f"{self.root}/{self.index.files[number].path}"

    @property
    def max_token_id(self) -> int | None:
        """Largest id in the index; None without tokens."""
        return max((one.max_token_id for one in self.index.files if one.tokens), default=None)

    @property
    def size_bytes(self) -> int | None:
        """Size of all files in bytes, if recorded in the side file."""
        return None if self.manifest is None else self.manifest.size_bytes

    @cached_property
    def manifest(self) -> Manifest | None:
        """Side file of the folder if it belongs to this index, else None."""
        return read_manifest(self._store, self.root, self.data, self.index)

    def _find_fingerprint(self) -> str:
        """Return a digest of the index, which has the digest of each file's documents."""
        return xxhash.xxh3_128_hexdigest(NAME.encode() + b"\n" + self.data)

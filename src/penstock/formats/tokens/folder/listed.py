"""The files of a folder of token files as its `index.json` lists them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import xxhash

from penstock.abc import TokenSource
from penstock.errors import Corrupt
from penstock.formats.tokens.folder.files import COPY_AGAIN
from penstock.formats.tokens.folder.index import INDEX_NAME, decode_index
from penstock.formats.tokens.folder.side import NAME, read_manifest
from penstock.store.base import Store
from penstock.types import Manifest


class ListedFiles:
    """The files that the index of a folder lists; see `penstock.formats.tokens.folder.files.FileList`.

    Args:
        store: where they are.
        root: the folder.
        data: the `index.json`.

    Attributes:
        paths: empty: the index stands for its files.
    """

    paths: tuple[str, ...] = ()

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

    def path(self, number: int) -> str:
        """Where file `number` is."""
        return f"{self.root}/{self.index.files[number].path}"

    @property
    def max_token_id(self) -> int | None:
        """The largest id, as the index says; None where there is no token."""
        return max((one.max_token_id for one in self.index.files if one.tokens), default=None)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all, where the side file says so."""
        return None if self.manifest is None else self.manifest.size_bytes

    @property
    def fingerprint(self) -> str:
        """Digest of the index, which has the digest of each file's documents."""
        return self._fingerprint

    @property
    def manifest(self) -> Manifest | None:
        """What the folder's side file says; None where there is none, or where it does not belong to this index."""
        return self._manifest

    @cached_property
    def _fingerprint(self) -> str:
        return xxhash.xxh3_128_hexdigest(NAME.encode() + b"\n" + self.data)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return read_manifest(self._store, self.root, self.data, self.index)

    def require(self, number: int, source: TokenSource) -> None:
        """That a file holds as many tokens as the index says; raises `Corrupt`."""
        entry = self.index.files[number]
        if source.num_tokens != entry.tokens:
            raise self.contradiction(number, f"{source.num_tokens} tokens", str(entry.tokens))

    def contradiction(self, number: int, found: str, expected: str) -> Corrupt:
        """The error for a file that holds something else than the index says."""
        what = f"a token file differs from the one listed in {INDEX_NAME}"
        return Corrupt(what, path=self.path(number), found=found, expected=expected, hint=COPY_AGAIN)

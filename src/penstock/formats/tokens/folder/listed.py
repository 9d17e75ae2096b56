"""Files of a folder of token files, as listed in its `index.json`."""

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
    """Files listed in the index of a folder; see `penstock.formats.tokens.folder.files.FileList`.

    Args:
        store: store of the folder.
        root: the folder.
        data: content of `index.json`.

    Attributes:
        paths: empty: the index represents its files.
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
        """Return the path of file `number`."""
        return f"{self.root}/{self.index.files[number].path}"

    @property
    def max_token_id(self) -> int | None:
        """Largest id in the index; None without tokens."""
        return max((one.max_token_id for one in self.index.files if one.tokens), default=None)

    @property
    def size_bytes(self) -> int | None:
        """Size of all files in bytes, if recorded in the side file."""
        return None if self.manifest is None else self.manifest.size_bytes

    @property
    def fingerprint(self) -> str:
        """Digest of the index, which has the digest of each file's documents."""
        return self._fingerprint

    @property
    def manifest(self) -> Manifest | None:
        """Side file of the folder; None if there is none, or if it doesn't belong to this index."""
        return self._manifest

    @cached_property
    def _fingerprint(self) -> str:
        return xxhash.xxh3_128_hexdigest(NAME.encode() + b"\n" + self.data)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return read_manifest(self._store, self.root, self.data, self.index)

    def require(self, number: int, source: TokenSource) -> None:
        """Raise `Corrupt` if a file doesn't have the number of tokens in the index."""
        entry = self.index.files[number]
        if source.num_tokens != entry.tokens:
            raise self.contradiction(number, f"{source.num_tokens} tokens", str(entry.tokens))

    def contradiction(self, number: int, found: str, expected: str) -> Corrupt:
        """Return the error for a file that contradicts the index."""
        what = f"a token file differs from the one listed in {INDEX_NAME}"
        return Corrupt(what, path=self.path(number), found=found, expected=expected, hint=COPY_AGAIN)

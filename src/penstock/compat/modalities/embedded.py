"""Packed files and line indexes of Modalities. The command line imports this module, so it doesn't import torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, Corrupt
from penstock.formats._findings import Problem
from penstock.formats._manifest import side_path
from penstock.formats.tokens.pbin.index import read_index
from penstock.formats.tokens.pbin.layout import find_layout
from penstock.prepare.jsonl_index import IndexReport, build_index
from penstock.store.exclude_list import require_no_list
from penstock.store.local import LocalStore
from penstock.store.place import local_path

IN_RAM: dict[int, type[np.integer[Any]]] = {1: np.uint8, 2: np.int32, 4: np.int64}
"""Bytes of a token on disk → dtype of arrays: torch supports few operations on most unsigned ones."""


class EmbeddedStreamData:
    """Header, token bytes and index of a packed file.

    Attributes:
        path: path of the file.
        data_len: length of the tokens in bytes.
        token_size_in_bytes: 1, 2 or 4.
        data: uint8[data_len], mapped read-only, as stored.

    Args:
        data_path: the file.
        load_index: also read the index.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file is damaged.

    Examples:
        >>> from penstock.compat.modalities import EmbeddedStreamData
        >>> stored = EmbeddedStreamData("corpus.pbin")
        >>> stored.data_len, stored.token_size_in_bytes
        (90, 2)
        >>> stored.index_base[:2]
        [(0, 10), (10, 12)]
    """

    DATA_SECTION_LENGTH_IN_BYTES = 8
    TOKEN_SIZE_DESCRIPTOR_LENGTH_IN_BYTES = 4
    HEADER_SIZE_IN_BYTES = DATA_SECTION_LENGTH_IN_BYTES + TOKEN_SIZE_DESCRIPTOR_LENGTH_IN_BYTES

    def __init__(self, data_path: str | os.PathLike[str], load_index: bool | None = True) -> None:
        store, path = LocalStore(), local_path(data_path, "a Modalities packed file")
        require_no_list(store, side_path(path), "the bytes of all documents are available")
        geometry = find_layout(store, path)
        if isinstance(geometry, Problem):
            raise geometry.at(path).error()
        self.path = path
        self.data_len = geometry.data_bytes
        self.token_size_in_bytes = geometry.token_bytes
        self.data: NDArray[np.uint8] = store.mmap(path)[geometry.layout.header_bytes : geometry.index_start_bytes]
        self._index: list[tuple[int, int]] | None = None
        if load_index:
            pairs = read_index(store, path, geometry)
            self._index = list(zip(*pairs.T.tolist(), strict=True))

    @property
    def index_base(self) -> list[tuple[int, int]]:
        """`(offset, length)` in bytes of each document, from the first token, as stored in the file.

        Raises:
            ConfigError: the object was made with `load_index=False`.
        """
        if self._index is None:
            raise ConfigError("the index was not loaded", hint="Pass load_index=True")
        return self._index


class FaultyLine(Corrupt, ValueError):
    """A line of invalid JSON: the original's `ValueError`."""


def write_index(
    path: Path, target: Path, *, drops: bool = False, overwrite: bool, progress: Callable[[int], None] | None = None
) -> IndexReport:
    """Write the index of a JSONL file; raise `FaultyLine` for invalid JSON, unless such lines are dropped."""
    try:
        on_error = "skip" if drops else "raise"
        return build_index(path, target, on_error=on_error, overwrite=overwrite, progress=progress)
    except Corrupt as error:
        raise FaultyLine(
            error.what, path=error.path, offset_bytes=error.offset_bytes, found=error.found, hint=error.hint
        ) from error

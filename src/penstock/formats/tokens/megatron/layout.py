"""Names of the two files of a dataset and of its side file, and the header of the index."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from penstock.errors import ConfigError, Corrupt, PenstockError, Truncated, Unsupported
from penstock.formats._findings import Problem
from penstock.formats._manifest import side_path
from penstock.formats.tokens.ids import id_limit, ids_dtype
from penstock.store.base import Store
from penstock.store.names import NEW_INDEX, OLD_INDEX, REPLACED
from penstock.store.put import beginning_of
from penstock.store.side_file import DATA, Facts, blocks_of, file_binding, fitting_manifest
from penstock.types import Manifest

INDEX = "index"
"""Name of the `.idx` in a side file's block digests; that of the `.bin` is `data`."""

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
MOST_LENGTH = (1 << 31) - 1
"""Largest number of tokens in a sequence: lengths are int32."""

_HEADER = struct.Struct("<9sQBQQ")
_U16_VOCABULARY = 65_500
_REPAIR = "Try `penstock repair`, which rebuilds the index if possible; otherwise copy both files again"


@dataclass(frozen=True, slots=True)
class Kind:
    """Storage of ids under one dtype code.

    Attributes:
        code: code in the header.
        name: NumPy's name of the dtype.
    """

    code: int
    name: str

    @property
    def stored(self) -> np.dtype[Any]:
        """Dtype in the `.bin`."""
        return np.dtype(self.name).newbyteorder("<")

    @property
    def itemsize(self) -> int:
        """Bytes of one token."""
        return np.dtype(self.name).itemsize

    @property
    def ids(self) -> np.dtype[Any]:
        """Dtype that ids are read as: uint8, uint16 or uint32."""
        return ids_dtype(self.stored)

    @property
    def id_limit(self) -> int:
        """First id that can't be stored, or isn't a uint32."""
        return id_limit(self.stored)


_NAMES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
KINDS = {name: Kind(code, name) for code, name in enumerate(_NAMES, 1)}
_BY_CODE = {one.code: one for one in KINDS.values()}
CODE_AT = 17
"""Offset of the dtype code in the index."""

KIND_OF_WIDTH = {1: KINDS["uint8"], 2: KINDS["uint16"], 4: KINDS["int32"]}
"""Default storage of ids by width."""


@dataclass(frozen=True, slots=True)
class Header:
    """Facts in the first 34 bytes of the index, checked against its size.

    Attributes:
        kind: storage of ids.
        num_sequences: number of lengths and of pointers.
        num_documents: one less than the entries of the document index.
        has_modes: whether the index ends with a mode per sequence.
    """

    kind: Kind
    num_sequences: int
    num_documents: int
    has_modes: bool

    @property
    def pointers_at(self) -> int:
        """Offset of the pointers; the lengths begin after the header."""
        return HEADER_BYTES + 4 * self.num_sequences

    @property
    def documents_at(self) -> int:
        """Offset of the document index."""
        return self.pointers_at + 8 * self.num_sequences

    @property
    def modes_at(self) -> int:
        """Offset of the modes."""
        return self.documents_at + 8 * (self.num_documents + 1)

    @property
    def size_bytes(self) -> int:
        """Size of the whole index."""
        return self.modes_at + self.has_modes * self.num_sequences


def named_prefix(store: Store, path: str) -> str:
    """Return the path without `.bin` or `.idx`, unless that is the name of a dataset itself."""
    if path.endswith((".bin", ".idx")) and not store.exists(idx_path(path)):
        return path[:-4]
    return path


def kept_prefix(prefix: str) -> str:
    """Return the prefix of the second names of an old dataset during its replacement."""
    return _hidden(prefix, REPLACED)


def has_kept(store: Store, prefix: str) -> bool:
    """Return whether a complete dataset exists under the second names."""
    kept = kept_prefix(prefix)
    return store.exists(idx_path(kept)) and store.exists(bin_path(kept))


def old_prefix(prefix: str) -> str:
    """Return the prefix of the index of an old dataset while its tokens, which keep their name, are replaced."""
    return _hidden(prefix, OLD_INDEX)


def new_prefix(prefix: str) -> str:
    """Return the prefix of the new index in the same situation."""
    return _hidden(prefix, NEW_INDEX)


def _hidden(prefix: str, mark: str) -> str:
    folder, name = os.path.split(prefix)
    return os.path.join(folder, f".{name}{mark}")


def final_prefix(prefix: str) -> str:
    """Return the final prefix of a dataset: for a waiting index, that of its tokens."""
    folder, name = os.path.split(prefix)
    mark = next((mark for mark in (OLD_INDEX, NEW_INDEX) if name.startswith(".") and name.endswith(mark)), None)
    return prefix if mark is None else os.path.join(folder, name[1 : -len(mark)])


def bin_path(prefix: str) -> str:
    """Return the path of the tokens."""
    return final_prefix(prefix) + ".bin"


def idx_path(prefix: str) -> str:
    """Return the path of the index."""
    return prefix + ".idx"


def require_kind(prefix: str, kind: Kind, layout: str | None) -> None:
    """Raise `ConfigError` if `layout` is given and ids are stored otherwise."""
    if layout is not None and kind_for(prefix, layout) != kind:
        what, hint = "the index has a different layout", "Omit --layout (layout=)"
        raise ConfigError(what, path=idx_path(prefix), found=kind.name, expected=layout, hint=hint)


def kind_for(
    path: str, dtype: str | None = None, vocab_size: int | None = None, token_bytes: int | None = None
) -> Kind | None:
    """Return the storage of ids by the first given argument of the three; None without any.

    Args:
        path: path for errors.
        dtype: one of the eight by name.
        vocab_size: by Megatron's rule, uint16 below 65,500 entries, else int32.
        token_bytes: 1, 2 or 4: uint8, uint16 or int32.

    Raises:
        ConfigError: the value isn't one of them.
    """
    if dtype is not None:
        if dtype not in KINDS:
            raise ConfigError("unknown dtype", path=path, found=repr(dtype), expected=", ".join(KINDS))
        return KINDS[dtype]
    if token_bytes is not None and token_bytes not in KIND_OF_WIDTH:
        raise ConfigError("unsupported token width", path=path, found=token_bytes, expected="1, 2 or 4 bytes")
    if vocab_size is not None:
        return KINDS["uint16" if vocab_size < _U16_VOCABULARY else "int32"]
    return None if token_bytes is None else KIND_OF_WIDTH[token_bytes]


def encode_header(header: Header) -> bytes:
    """Return 34 bytes: magic, version, dtype code, number of sequences, entries of the document index."""
    return _HEADER.pack(MAGIC, VERSION, header.kind.code, header.num_sequences, header.num_documents + 1)


def is_index(store: Store, path: str) -> bool:
    """Return whether the file at `path` begins as an index does."""
    return not store.is_folder(path) and beginning_of(store, path, len(MAGIC)) == MAGIC


def read_header(store: Store, prefix: str) -> Header | Problem:
    """Return the header of an index, checked against the size of its file, by two cheap reads.

    Raises:
        NotFound: the index doesn't exist.
    """
    path = idx_path(prefix)
    size_bytes = store.size(path)
    data = store.get(path, 0, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        found, expected = f"{size_bytes} bytes", f"{HEADER_BYTES} bytes or more"
        return _problem(
            "header", Truncated, path, "the index ends in the middle of its header", size_bytes, found, expected
        )
    magic, version, code, num_sequences, num_borders = _HEADER.unpack(data)
    if magic != MAGIC:
        return _problem("header", Corrupt, path, "not a Megatron index", 0, magic.hex(" "), MAGIC.hex(" "))
    if version != VERSION:
        return _problem("version", Unsupported, path, "unsupported index version", 9, str(version), str(VERSION))
    if code not in _BY_CODE:
        return _problem("dtype", Corrupt, path, "unknown dtype code", 17, str(code), "1 to 8")
    if num_borders == 0:
        what = "the document index has no entry"
        return _problem("documents", Corrupt, path, what, 26, "0 entries", "one more than the documents")
    header = Header(_BY_CODE[code], num_sequences, num_borders - 1, has_modes=False)
    if header.size_bytes == size_bytes:
        return header
    with_modes = Header(_BY_CODE[code], num_sequences, num_borders - 1, has_modes=True)
    if with_modes.size_bytes == size_bytes:
        return with_modes
    kind = Truncated if size_bytes < header.size_bytes else Corrupt
    found = f"{size_bytes} bytes for {num_sequences} sequences and {num_borders - 1} documents"
    expected = f"{header.size_bytes} bytes, or {with_modes.size_bytes} with modes"
    return _problem("index-size", kind, path, "the size of the index contradicts its counts", 18, found, expected)


def _problem(
    code: str, kind: type[PenstockError], path: str, what: str, offset_bytes: int, found: str, expected: str
) -> Problem:
    return Problem(f"megatron.{code}", kind, path, what, _REPAIR, offset_bytes, found, expected)


# --- side file -------------------------------------------------------------------------------------------------------


def side_file_path(prefix: str) -> str:
    return side_path(idx_path(final_prefix(prefix)))


def joint_binding(data_binding: str, index_binding: str) -> str:
    """Return one binding of both files."""
    return xxhash.xxh3_128_hexdigest(f"{data_binding}\n{index_binding}".encode())


def read_manifest(store: Store, prefix: str, num_docs: int) -> Manifest | None:
    """Return the side file of these files, if their index has this number of documents, else None."""
    return fitting_manifest(store, side_file_path(prefix), lambda: megatron_facts(store, prefix, num_docs))


def megatron_facts(store: Store, prefix: str, num_docs: int, num_tokens: int | None = None) -> Facts:
    """Return the facts of a dataset to compare with a side file: sizes, and the first and last 4 KiB of both files.

    The tokens are those of all sequences, if they were counted.
    """
    paths = (bin_path(prefix), idx_path(prefix))
    binding = joint_binding(*(file_binding(store, path) for path in paths))
    digest = blocks_of(store, dict(zip((DATA, INDEX), paths, strict=True)))
    return Facts("megatron", binding, sum(map(store.size, paths)), num_docs, num_tokens, block_digest=digest)

"""Raw token files: token ids and nothing else, or a short header before them. Read only.

| `layout=` | header | token ids | made by |
|---|---|---|---|
| `uint8`, `uint16`, `uint32`, `uint64` | none | little-endian, so wide | nanoGPT `.bin`, OLMo `.npy` |
| `llm.c` | 1,024 bytes | uint16 or uint32 | llm.c, modded-nanogpt `.bin` |
| `npy` | that of NumPy, versions 1 to 3 | any integer dtype, one dimension | `numpy.save` |

The header of llm.c is 256 int32: a magic, a version, the number of tokens, zeros. 20240520 with version 1 means uint16,
20240801 with version 7 uint32. Files with a header are detected by it. For others, `layout=` gives the width.

Documents are listed in `<stem>.csv.gz` next to a `<stem>.npy`, as OLMo's tools write it: lines `start,end[,…]` in
tokens. Otherwise, with `eos_id=`, they end after each such token. In llm.c's files they begin with it. A last document
without its token, and tokens before the first one, are documents too. With `one_document` and no `eos_id`, all tokens
are one document.

Limits: ids below 2^32. Checked against files made as nanoGPT 3adf61e, llm.c f1e2ace and OLMo-core fa6c501 make them.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, Truncated, Unsupported
from penstock.formats._findings import Problem
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tokens.checks import TokenRun, check_options, sampled_ranges
from penstock.formats.tokens.csv_borders import read_table, table_path
from penstock.formats.tokens.ids import FileIds
from penstock.formats.tokens.source import IndexBorders, MarkedBorders, OneDocument, RunSource, TokenLayout
from penstock.store.base import Store
from penstock.types import Depth, Finding, OpenOptions, Sniff, Traits

HEADERLESS = ("uint8", "uint16", "uint32", "uint64")
LLMC_HEADER_BYTES = 1024

_LLMC = {(20_240_520, 1): "<u2", (20_240_801, 7): "<u4"}
_LLMC_MAGICS = {20_240_520, 20_240_801, 20_240_522}
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER_BYTES = 12_000
_AGAIN = "Copy or recreate the file"


_ZIP, _GZIP, _ZSTD = b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_COMPRESSED = {".gz": _GZIP, ".zst": _ZSTD, ".xz": b"\xfd7zXZ", ".bz2": b"BZh", ".zip": _ZIP, ".npz": _ZIP}
"""Suffix of a compressed file → its first bytes, which could be ids."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Location of the tokens of a file.

    Attributes:
        layout: `"llm.c"`, `"npy"`, or one of `HEADERLESS`.
        start_bytes: position of the first token.
        num_tokens: number of tokens in the file.
        stored: dtype of the tokens.
    """

    layout: str
    start_bytes: int
    num_tokens: int
    stored: np.dtype[Any]


def find_geometry(store: Store, path: str, layout: str | None) -> Geometry | Problem:
    """Return the location of the tokens, by the header or else by `layout`; one read.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: no layout is given and none can be detected, or the header contradicts it.
        Unsupported: the file is compressed, by its name and its first bytes.
    """
    size_bytes = store.size(path)
    head = store.get(path, 0, min(size_bytes, _NPY_HEADER_BYTES))
    found = _headed(path, size_bytes, head)
    if found is None:
        magic = _COMPRESSED.get(os.path.splitext(path)[1])
        if magic is not None and head.startswith(magic):
            hint = "Decompress it and pass the result"
            raise Unsupported("the file is compressed", path=path, expected="bare tokens", hint=hint)
        return _headerless(path, size_bytes, layout)
    if isinstance(found, Geometry) and layout not in (None, found.layout, found.stored.name):
        told = f"{found.layout}, {found.stored.name}"
        raise ConfigError(
            "the header of the file contradicts the layout", path=path, found=f"layout={layout!r}", expected=told
        )
    return found


def open_raw(store: Store, path: str, options: OpenOptions) -> RunSource:
    """Open a file of tokens, by one read for any size.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the width of the tokens is unknown: pass `layout=`.
        FormatError: header and size contradict each other.
    """
    found = find_geometry(store, path, options.layout)
    if isinstance(found, Problem):
        raise found.error()
    ids = FileIds(store, path, found.start_bytes, found.num_tokens, found.stored, options.read)
    prepended = found.layout == "llm.c"
    table = table_path(path)
    more_files = (("table", table),) if table is not None and store.exists(table) else ()
    if more_files:
        borders = IndexBorders(partial(read_table, store, more_files[0][1], found.num_tokens))
    elif options.one_document and options.eos_id is None:
        borders = OneDocument(ids.num_tokens)
    else:
        borders = MarkedBorders(ids, path, options.eos_id, before=prepended)
    head = store.get(path, 0, found.start_bytes) + store.size(path).to_bytes(8, "little")
    eos_id, params = None if prepended else options.eos_id, (("layout", found.layout),)
    layout = TokenLayout("raw-tokens", open_raw, ids, borders, eos_id, head, more_files, params)
    return RunSource(store, path, options, layout)


def check_raw(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Check header and size; at `sample` and `full` also ids against `vocab_size`.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the width of the tokens is unknown.
    """
    found = find_geometry(store, path, options.layout)
    if isinstance(found, Problem):
        return [found.finding()]
    if found.num_tokens == 0:
        return [
            Finding("raw-tokens.empty", "warning", path, None, "no tokens", None, "Check the program that wrote it")
        ]
    findings = _check_table(store, path, found.num_tokens)
    if findings or depth == "quick":
        return findings
    source = open_raw(store, path, options)
    ids = source.ids
    try:
        if depth == "full" and options.eos_id is not None:
            _ = source.doc_starts
        for start, stop in sampled_ranges(ids.num_tokens, depth):
            ids.tokens(start, stop)
    except ConfigError as error:
        return [Finding("raw-tokens.no-eos", "error", path, None, f"{error.what}: {error.found}", None, error.hint)]
    except PenstockError as error:
        return [Finding("raw-tokens.id", "error", path, None, str(error.found), str(error.expected), error.hint)]
    return list(check_options(TokenRun("raw-tokens", path, ids), options, None, depth))


def _check_table(store: Store, path: str, num_tokens: int) -> list[Finding]:
    """Return findings about the documents in the table next to the tokens, if there is one."""
    table = table_path(path)
    if table is None or not store.exists(table):
        return []
    try:
        read_table(store, table, num_tokens)
    except FormatError as error:
        found, expected = str(error.found or error.what), None if error.expected is None else str(error.expected)
        return [Finding("raw-tokens.table", "error", table, None, found, expected, error.hint)]
    return []


def _headed(path: str, size_bytes: int, head: bytes) -> Geometry | Problem | None:
    """Return the facts in a header, or None without one."""
    if head.startswith(_NPY_MAGIC):
        return _npy(path, size_bytes, head)
    if len(head) >= 12:
        magic, version, count = struct.unpack_from("<3i", head)
        if magic in _LLMC_MAGICS:
            return _llmc(path, size_bytes, magic, version, count)
    return None


def _llmc(path: str, size_bytes: int, magic: int, version: int, count: int) -> Geometry | Problem:
    dtype = _LLMC.get((magic, version))
    if dtype is None:
        what, expected = "an llm.c file without training tokens", "20240520 version 1, 20240801 version 7"
        found = f"{magic} version {version}"
        return Problem("raw-tokens.version", Unsupported, path, what, "Pass a training file", 0, found, expected)
    stored = np.dtype(dtype)
    expected_bytes = LLMC_HEADER_BYTES + count * stored.itemsize
    if count < 0 or size_bytes != expected_bytes:
        kind = Truncated if 0 <= size_bytes < expected_bytes else Corrupt
        what, found = "the file has a different size than its header records", f"{size_bytes} bytes"
        expected = f"{expected_bytes} bytes for {count} tokens"
        return Problem("raw-tokens.size", kind, path, what, _AGAIN, 8, found, expected)
    return Geometry("llm.c", LLMC_HEADER_BYTES, count, stored)


def _npy(path: str, size_bytes: int, head: bytes) -> Geometry | Problem:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream, max_header_size=_NPY_HEADER_BYTES)
    except Exception as error:  # the parser of literals raises many kinds
        what = "the header of the array is damaged"
        return Problem("raw-tokens.header", Corrupt, path, what, _AGAIN, 0, str(error)[:200], "a NumPy header")
    stored: np.dtype[Any] = dtype
    if stored.kind not in "iu" or len(shape) != 1:
        what, found = "the array is not one-dimensional integers", f"{stored} of shape {shape}"
        fix, expected = "Pass a one-dimensional array", "one-dimensional integers"
        return Problem("raw-tokens.array", Unsupported, path, what, fix, 0, found, expected)
    count, start_bytes = int(shape[0]), stream.tell()
    expected_bytes = start_bytes + count * stored.itemsize
    if count < 0 or size_bytes != expected_bytes:
        kind = Truncated if 0 <= size_bytes < expected_bytes else Corrupt
        what, expected = "the file has a different size than its header records", f"{expected_bytes} bytes"
        return Problem("raw-tokens.size", kind, path, what, _AGAIN, 0, f"{size_bytes} bytes", expected)
    return Geometry("npy", start_bytes, count, stored)


def _headerless(path: str, size_bytes: int, layout: str | None) -> Geometry | Problem:
    if layout not in HEADERLESS:
        raise ConfigError(
            "the token width is unknown: the file has no header",
            path=path,
            found=None if layout is None else f"layout={layout!r}",
            expected=" | ".join(HEADERLESS),
            hint="Specify layout= (--layout): uint16 for nanoGPT, usually uint32 or uint16 for OLMo",
        )
    stored = np.dtype(layout).newbyteorder("<")
    if size_bytes % stored.itemsize:
        what, found = "the file ends with a partial token", f"{size_bytes} bytes"
        expected = f"a multiple of {stored.itemsize}"
        return Problem("raw-tokens.size", Corrupt, path, what, f"Is it {layout}? {_AGAIN}", size_bytes, found, expected)
    return Geometry(layout, 0, size_bytes // stored.itemsize, stored)


class _RawTokens:
    name = "raw-tokens"
    traits = Traits(
        tokens=True, layouts=True, remote=True, verify=True, borderless=True,
        suffixes=(".bin", ".npy"), made_by="nanoGPT, llm.c, OLMo",
    )  # fmt: skip

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the header of llm.c or NumPy; a file without one can't be detected."""
        try:
            size_bytes = store.size(path)
            found = _headed(path, size_bytes, store.get(path, 0, min(size_bytes, _NPY_HEADER_BYTES)))
        except NotFound:
            return Sniff(False, "no such file")
        if found is None:
            return Sniff(
                False,
                "no header. If it contains bare tokens: --format raw-tokens --layout uint16 (format=, layout=)",
            )
        if isinstance(found, Problem):
            # A truncated file is accepted here, because `open` describes the damage; an array of floats isn't.
            return Sniff(found.code == "raw-tokens.size" and path.endswith(self.traits.suffixes), found.what)
        return Sniff(True, f"a header of {found.layout}")

    open = staticmethod(open_raw)
    create = refuse_to_create
    check = staticmethod(check_raw)
    repair = repair_nothing


FORMAT = _RawTokens()

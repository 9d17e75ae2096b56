"""Streaming writer of a packed file in the current layout, and of side files for packed files of other tools."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.codec.pickles import MARKED_PAIRS, PairListEncoder
from penstock.codec.tokens import dtype_for, token_bytes_for_vocab
from penstock.errors import ConfigError
from penstock.formats._manifest import DATA, Provenance, file_digests, side_path
from penstock.formats.tokens.common import require_eos, runs_of
from penstock.formats.tokens.joined import JoinedTokens, measured_manifest
from penstock.formats.tokens.pbin.index import doc_starts, read_marked
from penstock.formats.tokens.pbin.layout import TODAY
from penstock.formats.tokens.pbin.source import open_pbin
from penstock.formats.tokens.pbin.starts import encode_starts
from penstock.formats.tokens.writer import Frame, TokenCounts, TokenFileWriter, token_options
from penstock.store.base import Store
from penstock.store.outputs import output_path
from penstock.store.side_file import file_binding, replace_side_file
from penstock.types import IntArray, OpenOptions


def encode_header(data_bytes: int, token_bytes: int) -> bytes:
    """Return 12 bytes: data length u64, token width u32, little-endian."""
    return struct.pack("<QI", data_bytes, token_bytes)


class EncodedIndex:
    """Bytes of the index, piece by piece, of documents stored back to back.

    Args:
        lengths: runs of int64[k]: tokens of each document.
        token_bytes: width of a token.
    """

    def __init__(self, lengths: Iterable[IntArray], token_bytes: int) -> None:
        self._lengths = lengths
        self._token_bytes = token_bytes
        self._encoder = PairListEncoder()
        self._marked: list[int] = []
        self._num_docs = 0

    def __iter__(self) -> Iterator[bytes]:
        offset_bytes = 0
        for run in self._lengths:
            pairs = np.empty((len(run), 2), np.int64)
            np.multiply(run, self._token_bytes, out=pairs[:, 1])
            np.cumsum(pairs[:, 1], out=pairs[:, 0])
            pairs[:, 0] += offset_bytes - pairs[:, 1]
            offset_bytes += int(pairs[:, 1].sum())
            marked = pairs[-self._num_docs % MARKED_PAIRS :: MARKED_PAIRS, 0]
            self._marked += (marked // self._token_bytes).tolist()
            self._num_docs += len(run)
            yield self._encoder.encode(pairs)
        yield self._encoder.finish()

    def starts(self) -> str | None:
        """Return the table of documents for the side file, once all bytes were yielded; None for few documents."""
        return encode_starts(self._encoder.marks, self._marked, self._num_docs)


def join_pbin(options: Mapping[str, Any], tokens: JoinedTokens, path: str) -> Frame | None:
    """Return the bytes around tokens of parts in a packed file; None if `options` require another width.

    Raises:
        TooLarge: an id does not fit.
    """
    own, given = token_options(options, ("token_bytes", "vocab_size"), path)
    if own != {"token_bytes": tokens.token_bytes}:
        return None
    require_eos(path, dtype_for(tokens.token_bytes, "<"), given.eos_id)
    return _frame(tokens, tokens.token_bytes, own, given)


def _frame(tokens: TokenCounts, token_bytes: int, own: Mapping[str, Any], given: Provenance) -> Frame:
    index = EncodedIndex(tokens.lengths(), token_bytes)
    head = encode_header(tokens.num_tokens * token_bytes, token_bytes)
    return Frame(head, index, None, own, given, starts=index.starts)


def create_pbin(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> PbinWriter:
    """Return a writer for a packed file.

    Args:
        store: store of the file.
        path: its path.
        options: `token_bytes` (1, 2 or 4) or `vocab_size`, from which the width follows by Modalities' rule; ids are
            checked against both. `eos_id, tokenizer, tokenizer_digest, inputs, options` go into the side file only.
        overwrite: replace an existing file.

    Raises:
        ConfigError: an unknown option, no width, or an output that exists.
    """
    own, given = token_options(options, ("token_bytes", "vocab_size"), path)
    token_bytes, vocab_size = own.get("token_bytes"), own.get("vocab_size")
    if vocab_size is not None:
        needed_bytes = token_bytes_for_vocab(vocab_size)
        token_bytes = needed_bytes if token_bytes is None else token_bytes
    if token_bytes is None:
        raise ConfigError("the token width is unknown", path=path, hint="Pass token_bytes= or vocab_size=")
    path = output_path(store, path)
    return PbinWriter(store, path, token_bytes, vocab_size, given, overwrite=overwrite)


class PbinWriter(TokenFileWriter):
    """Streaming writer of documents to a packed file."""

    format = "pbin"

    def __init__(
        self,
        store: Store,
        path: str,
        token_bytes: int,
        vocab_size: int | None,
        given: Provenance,
        *,
        overwrite: bool,
    ) -> None:
        dtype = dtype_for(token_bytes, "<")
        require_eos(path, dtype, given.eos_id)
        self._own = {"token_bytes": token_bytes} | ({} if vocab_size is None else {"vocab_size": vocab_size})
        limit = min(1 << 8 * token_bytes, vocab_size or 1 << 32)
        super().__init__(store, path, dtype, limit, given, overwrite=overwrite)

    def _frame(self, tokens: TokenCounts) -> Frame:
        return _frame(tokens, self.part_bytes, self._own, self._given)


def write_pbin_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Count and digest a packed file of another tool, and write its side file; return the side file's path.

    Tokenizer, inputs and options of a side file that fits are kept. Every byte is read twice. Memory: 8 bytes per
    document and 64 MiB.

    Raises:
        FormatError: the file is damaged, or contradicts the existing side file and `replace` is false.
    """
    source = open_pbin(store, path, options)
    known, geometry = source.manifest, source.geometry
    pairs, marks = read_marked(store, path, geometry)
    starts = doc_starts(pairs, geometry, path)

    def table() -> str | None:
        if marks is None or geometry.layout is not TODAY or geometry.offset_base_bytes:
            return None
        return encode_starts(marks, starts[:-1:MARKED_PAIRS], len(starts) - 1)

    own, given = {"token_bytes": source.dtype.itemsize}, Provenance.recorded(known, source.eos_id)
    manifest = measured_manifest(
        "pbin",
        ((source.tokens(start, stop), lengths) for start, stop, lengths in runs_of(starts)),
        known,
        Frame(b"", (), None, own, given, starts=table),
        size_bytes=store.size(path),
        block_digests={DATA: file_digests(store, path)},
        binding=file_binding(store, path),
    )
    replace_side_file(store, side_path(path), manifest, replace=replace)
    return side_path(path)

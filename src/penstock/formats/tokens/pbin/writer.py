"""Writing a packed file: today's layout, streamed, with its side file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import JoinedRows
from penstock.abc import Store
from penstock.codec.pickles import MARKED_PAIRS, PairListEncoder
from penstock.codec.tokens import as_tokens, check_ids, dtype_for, token_bytes_for_vocab
from penstock.errors import ConfigError
from penstock.formats._manifest import DATA, FileDigests, Provenance, commit_with_side_file, side_path
from penstock.formats._writers import leave, require_open
from penstock.formats.tokens.common import require_eos
from penstock.formats.tokens.joined import Frame, JoinedTokens
from penstock.formats.tokens.pbin.layout import HEADER_BYTES
from penstock.formats.tokens.pbin.starts import encode_starts
from penstock.formats.tokens.writer import (
    TokenTally,
    append_part,
    check_lengths,
    read_part,
    take_joined,
    token_manifest,
    token_options,
    write_document,
    write_document_batch,
)
from penstock.store.outputs import claim_files, output_path
from penstock.types import IntArray, Manifest


def encode_header(data_bytes: int, token_bytes: int) -> bytes:
    """12 bytes: data length u64, token width u32, little-endian."""
    return struct.pack("<QI", data_bytes, token_bytes)


class EncodedIndex:
    """The bytes of the index, piece by piece, of documents that lie back to back.

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
        """The table of documents for the side file, once all bytes were given; None for few documents."""
        return encode_starts(self._encoder.marks, self._marked, self._num_docs)


def join_pbin(options: Mapping[str, Any], tokens: JoinedTokens, path: str) -> Frame | None:
    """What stands around tokens of parts in a packed file; None where `options` ask for another width.

    Raises:
        TooLarge: an id does not fit.
    """
    own, given = token_options(options, ("token_bytes", "vocab_size"), path)
    if own != {"token_bytes": tokens.token_bytes}:
        return None
    require_eos(path, dtype_for(tokens.token_bytes, "<"), given.eos_id)
    head = encode_header(tokens.num_tokens * tokens.token_bytes, tokens.token_bytes)
    index = EncodedIndex(tokens.lengths(), tokens.token_bytes)
    return Frame(head, index, None, own, given, starts=index.starts)


def create_pbin(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> PbinWriter:
    """A writer for a packed file.

    Args:
        store: where it will be.
        path: its path.
        options: `token_bytes` (1, 2 or 4) or `vocab_size`, from which the width follows by Modalities' rule; ids are
            checked against both. `eos_id, tokenizer, tokenizer_digest, inputs, options` go into the side file only.
        overwrite: replace what is there.

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


class PbinWriter:
    """Streams documents, as they are given, into a packed file; see `penstock.abc.Writer`. Made by `penstock.create`.

    Memory: 8 bytes a document, and about 64 MiB.
    """

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
        self._dtype = dtype_for(token_bytes, "<")
        require_eos(path, self._dtype, given.eos_id)
        self._store = store
        self._path = path
        self._limit = min(1 << 8 * token_bytes, vocab_size or 1 << 32)
        self._options = {"token_bytes": token_bytes} | ({} if vocab_size is None else {"vocab_size": vocab_size})
        self._given = given
        self._overwrite = overwrite
        self._tally = TokenTally()
        self._open = True
        self._claim = claim_files(store, path, side=side_path(path))
        try:
            self._staged = store.stage(path, overwrite=overwrite)
        except BaseException:
            self._claim.release()
            raise
        self._digests = FileDigests(self._staged, header_bytes=HEADER_BYTES)
        self._append(encode_header(0, token_bytes))

    write = write_document
    write_batch = write_document_batch

    def write_run(self, tokens: NDArray[Any], doc_lengths: IntArray, /) -> None:
        """Add documents that lie back to back.

        Args:
            tokens: integers [n_tokens].
            doc_lengths: int64[n_docs], in tokens; their sum is `len(tokens)`.

        Raises:
            TooLarge: an id does not fit the width or the vocabulary; nothing of this call is written.
            ConfigError: lengths and tokens differ, or the writer is closed.
        """
        require_open(self._open, self._path)
        tokens = as_tokens(tokens)
        lengths = check_lengths(len(tokens), doc_lengths)
        highest = check_ids(tokens, lengths, self._limit, first_doc=self._tally.num_docs, path=self._path)
        stored = np.ascontiguousarray(tokens, self._dtype)
        self._append(stored)
        self._tally.add(stored, lengths, highest)

    @property
    def part_bytes(self) -> int:
        """Width of the tokens that `write_part` takes."""
        return self._dtype.itemsize

    def expect_digest(self, digest: Callable[[], str]) -> None:
        """See `penstock._kinds.ExpectsDigest`."""
        self._tally.expected = digest

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Add documents whose tokens lie back to back in a local file, copied by the kernel.

        Args:
            path: local file.
            start_bytes: where its tokens begin, little-endian in this writer's width.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id in there, -1 when there is no token, or None: they are looked at.

        Raises:
            Truncated: the file is too short.
            TooLarge: an id does not fit.
        """
        require_open(self._open, self._path)
        stored, lengths = read_part(path, start_bytes, doc_lengths, self._dtype, self._limit, max_token_id)
        try:
            known = (self._dtype, self._digests, self._tally, self._limit, max_token_id)
            highest = append_part(self._staged, path, start_bytes, stored, *known)
        except BaseException:
            self.abort()
            raise
        self._tally.add_lengths(lengths, highest)

    def write_joined(self, rows: JoinedRows, /) -> None:
        """See `penstock._kinds.JoinsRows`; raises `TooLarge` where an id does not fit."""
        require_open(self._open, self._path)
        head = encode_header(rows.size_bytes, self._dtype.itemsize)
        self._staged.write_at(0, head)
        take_joined(rows, self._store, self._staged, len(head), self._digests, self._tally, self._limit)

    def commit(self) -> Manifest:
        """Write index, header and side file, and make the dataset visible, durably."""
        require_open(self._open, self._path)
        self._open = False
        try:
            index = EncodedIndex(self._tally.lengths(), self._dtype.itemsize)
            for piece in index:
                self._append(piece)
            data_bytes = self._tally.num_tokens * self._dtype.itemsize
            header = encode_header(data_bytes, self._dtype.itemsize)
            self._staged.write_at(0, header)
            block_digests, binding = self._digests.finish()
            manifest = token_manifest(
                "pbin",
                self._tally,
                self._given,
                self._options,
                size_bytes=self._staged.tell(),
                block_digests={DATA: block_digests},
                binding=binding,
                starts=index.starts(),
            )
            commit_with_side_file(self._store, self._staged, side_path(self._path), manifest, overwrite=self._overwrite)
        except BaseException:
            self._staged.abort()
            raise
        finally:
            self._claim.release()
        return manifest

    def abort(self) -> None:
        """Discard everything written so far."""
        self._open = False
        self._staged.abort()
        self._claim.release()

    def __enter__(self) -> Self:
        return self

    __exit__ = leave

    def _append(self, data: bytes | NDArray[Any]) -> None:
        try:
            self._staged.write(data)
        except BaseException:
            # What is in the file is no longer what was counted: nobody may go on with it.
            self.abort()
            raise
        self._digests.update(data)

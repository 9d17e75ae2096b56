"""Base classes of the writers of token formats: documents are counted and digested as they are written."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._kinds import JoinedRows
from penstock._threads import thread_pool
from penstock.codec.hashes import DocumentDigest
from penstock.codec.tokens import as_tokens, check_ids
from penstock.errors import ConfigError, TooLarge, Truncated, Unsupported
from penstock.formats._manifest import DATA, ClaimedFile, FileDigests, Provenance
from penstock.formats._writers import BaseWriter, require_fields, require_known, require_open
from penstock.store.base import Store
from penstock.store.compose import append_range
from penstock.store.local import LocalStore
from penstock.types import Batch, Buffer, IntArray, Manifest, Sample

_PIECE_BYTES = 1 << 24
_FRESH_PARTS = 1024


def token_options(options: Mapping[str, Any], own: Sequence[str], path: str) -> tuple[dict[str, Any], Provenance]:
    """Return the options passed to `penstock.create`: a format's own ones, and the provenance of the data.

    Raises:
        ConfigError: an unknown option.
    """
    require_known(options, [*own, *(one.name for one in dataclasses.fields(Provenance))], path)
    given = {name: value for name, value in options.items() if value is not None}
    mine = {name: given.pop(name) for name in own if name in given}
    return mine, Provenance(**given)


class TokenCounts(Protocol):
    """Counts of all documents of a dataset."""

    @property
    def num_docs(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def max_token_id(self) -> int: ...

    def lengths(self) -> Iterable[IntArray]:
        """Yield the number of tokens of each document, in runs of int64[k]; may be called again."""
        ...

    def hexdigest(self) -> str: ...


def _first(binding: str, _index_binding: str) -> str:
    return binding


def _no_table() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes around the tokens in the files of a dataset.

    Attributes:
        head: bytes before the tokens, in their file; their number is fixed.
        tail: bytes after them.
        index: content of a separate index file, which can be iterated again, or None.
        options: the writer's own options, for the side file.
        given: provenance of the data, for the side file.
        index_name: name of the index file in the side file's block digests.
        joint_binding: combines the bindings of both files.
        starts: `Manifest.starts`, called once head and tail are written.
    """

    head: bytes
    tail: Iterable[Buffer]
    index: Iterable[Buffer] | None
    options: Mapping[str, Any]
    given: Provenance
    index_name: str = ""
    joint_binding: Callable[[str, str], str] = _first
    starts: Callable[[], str | None] = _no_table


class TokenTally:
    """Counts, largest id and digest of the documents passed to a writer.

    Args:
        keep_lengths: keep them for `lengths()`; takes 4 bytes per document, or 8 if one has 2^32 tokens or more.

    Attributes:
        expected: returns the digest if it is known without reading the documents; see `ExpectsDigest`.
    """

    __slots__ = ("_digest", "_fresh", "_keep_lengths", "_lengths", "expected", "max_token_id", "num_docs", "num_tokens")

    def __init__(self, *, keep_lengths: bool = True) -> None:
        self._digest = DocumentDigest()
        self.expected: Callable[[], str] | None = None
        self._keep_lengths = keep_lengths
        self._lengths: list[NDArray[Any]] = []
        self._fresh: list[NDArray[Any]] = []
        self.num_docs = 0
        self.num_tokens = 0
        self.max_token_id = -1

    def add(self, tokens: NDArray[Any], doc_lengths: IntArray, max_token_id: int) -> None:
        """Add uint[n_tokens] and the lengths of the documents in it."""
        self.add_tokens(tokens)
        self.add_lengths(doc_lengths, max_token_id)

    def add_tokens(self, tokens: NDArray[Any]) -> None:
        """Add only tokens; `add_lengths` adds the lengths of their documents."""
        if self.expected is None:
            self._digest.update(tokens, np.empty(0, np.int64))

    def add_lengths(self, doc_lengths: IntArray, max_token_id: int) -> None:
        """Add only lengths, int64[n_docs], and the largest id of these documents (-1: no token)."""
        if self.expected is None:
            self._digest.update_lengths(doc_lengths)
        if self._keep_lengths:
            short = not len(doc_lengths) or int(doc_lengths.max()) < 1 << 32
            self._fresh.append(doc_lengths.astype(np.uint32 if short else np.int64))
        if len(self._fresh) >= _FRESH_PARTS:
            self._lengths.append(np.concatenate(self._fresh))  # each length is copied once, however many follow
            self._fresh.clear()
        self.num_docs += len(doc_lengths)
        self.num_tokens += int(doc_lengths.sum())
        self.max_token_id = max(self.max_token_id, max_token_id)

    def lengths(self) -> Iterator[IntArray]:
        """Yield all document lengths, in runs of at most 2^16."""
        for run in (*self._lengths, *self._fresh):
            for start in range(0, len(run), 1 << 16):
                yield run[start : start + (1 << 16)].astype(np.int64)

    def hexdigest(self) -> str:
        """Return the document digest; nothing can be added after it."""
        return self._digest.hexdigest() if self.expected is None else self.expected()


def read_part(
    path: str, start_bytes: int, doc_lengths: IntArray, dtype: np.dtype[Any], limit: int, max_token_id: int | None
) -> tuple[NDArray[np.uint8], IntArray]:
    """Return the tokens of a part that are back to back in a local file, and the lengths of its documents.

    Args:
        path: local file.
        start_bytes: offset of its tokens.
        doc_lengths: int64[n_docs], in tokens.
        dtype: dtype of the tokens.
        limit: ids must be below it.
        max_token_id: the largest id, if known.

    Returns:
        uint8[n_bytes], mapped, and int64[n_docs].

    Raises:
        Truncated: the file is too short.
        TooLarge: `max_token_id` is not below `limit`.
    """
    if max_token_id is not None and max_token_id >= limit:
        raise TooLarge("a token id does not fit", path=path, found=max_token_id, expected=f"below {limit}")
    num_tokens = int(np.sum(doc_lengths, dtype=np.int64))
    lengths = check_lengths(num_tokens, doc_lengths)
    length_bytes = num_tokens * dtype.itemsize
    stored = LocalStore().mmap(path)[start_bytes : start_bytes + length_bytes]
    if len(stored) < length_bytes:
        found, expected = f"{len(stored)} bytes", f"{length_bytes} bytes"
        what = "the part is shorter than its documents"
        raise Truncated(what, path=path, offset_bytes=start_bytes, found=found, expected=expected)
    return stored, lengths


def document_run(batch: Batch, path: str) -> tuple[NDArray[Any], IntArray]:
    """Return a batch of documents as one run: integers [n_tokens] and their int64[n_docs] lengths.

    Raises:
        ConfigError: a field other than `tokens`, or values that aren't rows of integers.
    """
    require_fields(batch, path)
    if batch.keys() != {"tokens"}:
        raise ConfigError(
            "a token format can only store documents of tokens",
            path=path,
            found=", ".join(map(str, batch)) or "no field",
            expected="tokens",
        )
    values = batch["tokens"]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return as_tokens(values.reshape(-1)), np.full(len(values), values.shape[1], np.int64)
    documents = [as_tokens(value) for value in values]
    lengths = np.array([len(one) for one in documents], np.int64)
    # An empty document has no ids, so its dtype must not widen the others'.
    filled = [one for one in documents if len(one)]
    return np.concatenate(filled) if filled else np.empty(0, np.uint8), lengths


def check_lengths(num_tokens: int, doc_lengths: Any) -> IntArray:
    """Return document lengths that fill a run exactly, int64[n_docs]; raise `ConfigError` if they don't."""
    lengths = as_tokens(doc_lengths).astype(np.int64, copy=False)
    if len(lengths) and int(lengths.min()) < 0:
        raise ConfigError("a negative document length", found=int(lengths.min()))
    if int(lengths.sum()) != num_tokens:
        raise ConfigError(
            "the document lengths don't add up to the number of tokens",
            found=f"{num_tokens} tokens",
            expected=f"{int(lengths.sum())}",
        )
    return lengths


class TokenWriter(BaseWriter):
    """Streams documents into a dataset; see `penstock.abc.Writer`. Made by `penstock.create`.

    A format appends runs of documents (`_append_run`), makes the dataset visible (`_commit`) and drops what isn't
    committed (`_close`).

    Args:
        path: path of the dataset.
        part_dtype: of the tokens that `write_part` takes, little-endian.
        limit: ids must be below it.
        given: provenance of the data.
        keep_lengths: keep the lengths of all documents for an index, in 4 bytes each, or 8 for very long ones.
    """

    def __init__(
        self, path: str, part_dtype: np.dtype[Any], limit: int, given: Provenance, *, keep_lengths: bool = True
    ) -> None:
        super().__init__(path)
        self._part_dtype = part_dtype
        self._limit = limit
        self._given = given
        self._tally = TokenTally(keep_lengths=keep_lengths)

    def write(self, sample: Sample, /) -> None:
        """Add one document: `{"tokens": integers [n]}`."""
        require_fields(sample, self._path)
        self.write_batch({name: [value] for name, value in sample.items()})

    def write_batch(self, batch: Batch, /) -> None:
        """Add documents: `{"tokens": a list of integer arrays, or one [k, n]}`."""
        self.write_run(*document_run(batch, self._path))

    def write_run(self, tokens: NDArray[Any], doc_lengths: IntArray, /) -> None:
        """Add documents back to back.

        Args:
            tokens: integers [n_tokens].
            doc_lengths: int64[n_docs], in tokens; their sum is `len(tokens)`.

        Raises:
            TooLarge: an id does not fit the dtype or the vocabulary, or a document is too long for an index; nothing
                of this call is written.
            ConfigError: lengths and tokens differ, or the writer is closed.
        """
        require_open(self._open, self._path)
        tokens = as_tokens(tokens)
        lengths = check_lengths(len(tokens), doc_lengths)
        self._require_short(lengths)
        highest = check_ids(tokens, lengths, self._limit, first_doc=self._tally.num_docs, path=self._data_path)
        with self._aborting():
            self._tally.add(self._append_run(tokens, lengths), lengths, highest)

    @property
    def part_bytes(self) -> int:
        """Width of the tokens that `write_part` takes."""
        return self._part_dtype.itemsize

    def expect_digest(self, digest: Callable[[], str]) -> None:
        """See `penstock._kinds.ExpectsDigest`."""
        self._tally.expected = digest

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Add documents back to back from a local file; the kernel copies them if their stored bytes are the same.

        Args:
            path: local file.
            start_bytes: position of its tokens, little-endian in `part_bytes`.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id in there, -1 without tokens, or None if it is unknown.

        Raises:
            Truncated: the file is too short.
            TooLarge: an id does not fit.
        """
        require_open(self._open, self._path)
        stored, lengths = read_part(path, start_bytes, doc_lengths, self._part_dtype, self._limit, max_token_id)
        self._append_part(path, start_bytes, stored, lengths, max_token_id)

    @property
    def _data_path(self) -> str:
        """Path of the tokens, for errors."""
        return self._path

    def _require_short(self, lengths: IntArray) -> None:
        """Raise `TooLarge` if a document is too long."""

    @abstractmethod
    def _append_run(self, tokens: NDArray[Any], lengths: IntArray) -> NDArray[Any]:
        """Append checked documents; return their tokens, as given or as stored integers."""

    def _append_part(
        self, path: str, start_bytes: int, stored: NDArray[np.uint8], lengths: IntArray, max_token_id: int | None
    ) -> None:
        self.write_run(stored.view(self._part_dtype), lengths)


class TokenFileWriter(TokenWriter):
    """Writer of a dataset with its tokens in one file, in the order of the documents.

    A format sets `format` and defines `_frame`. If it has more files than its side file, it also overrides `_claim`.
    Memory: 8 bytes per document, and about 64 MiB.

    Args:
        store: store of the dataset.
        path: path of the dataset.
        stored: dtype of the tokens in the file.
        limit: ids must be below it.
        given: provenance of the data.
        overwrite: replace an existing dataset.
        part_dtype: dtype of the tokens that `write_part` takes, `stored` by default.
    """

    format: ClassVar[str]

    def __init__(
        self,
        store: Store,
        path: str,
        stored: np.dtype[Any],
        limit: int,
        given: Provenance,
        *,
        overwrite: bool,
        part_dtype: np.dtype[Any] | None = None,
    ) -> None:
        super().__init__(path, part_dtype or stored, limit, given)
        self._store = store
        self._stored = stored
        self._overwrite = overwrite
        self._output = self._claim()
        self._staged = self._output.staged
        head = self._frame(self._tally).head
        self._digests = FileDigests(self._staged, header_bytes=len(head))
        if head:
            self._append(head)

    @abstractmethod
    def _frame(self, tokens: TokenCounts) -> Frame:
        """Return the bytes around the tokens."""

    def _claim(self) -> ClaimedFile:
        """Claim the files of the dataset for this writer."""
        return ClaimedFile(self._store, self._path, overwrite=self._overwrite)

    @property
    def _stores_parts(self) -> bool:
        """Whether the bytes of a part are those of this dataset."""
        return self._stored.kind in "iu" and self._stored.itemsize == self.part_bytes

    def write_joined(self, rows: JoinedRows, /) -> None:
        """Join rows; see `penstock._kinds.JoinsRows`.

        Raises:
            Unsupported: tokens are stored in another width.
            TooLarge: an id does not fit, or a document is too long for an index.
        """
        require_open(self._open, self._path)
        if not self._stores_parts:
            raise Unsupported("the tokens can't be copied as they are: their stored dtype differs", path=self._path)
        if rows.max_token_id >= self._limit:
            found, expected = rows.max_token_id, f"below {self._limit}"
            raise TooLarge("a token id does not fit", path=self._data_path, found=found, expected=expected)
        for run in rows.lengths():
            self._require_short(run)
        self._tally.expected = lambda: rows.digest
        for run in rows.lengths():
            self._tally.add_lengths(run, rows.max_token_id)
        head = self._frame(self._tally).head
        if head:
            self._staged.write_at(0, head)
        for extent in rows.ranges:
            append_range(self._staged, self._store, extent)
        self._digests.take(len(head) + rows.size_bytes, rows.blocks, rows.rest())

    def _append(self, data: Buffer) -> None:
        with self._aborting():
            self._staged.write(data)
        self._digests.update(data)

    def _append_run(self, tokens: NDArray[Any], lengths: IntArray) -> NDArray[Any]:
        stored = np.ascontiguousarray(tokens, self._stored)
        self._append(stored)
        return stored if stored.dtype.kind == "u" else tokens

    def _append_part(
        self, path: str, start_bytes: int, stored: NDArray[np.uint8], lengths: IntArray, max_token_id: int | None
    ) -> None:
        """Append tokens of a local file by the kernel, and digest them meanwhile."""
        self._require_short(lengths)
        if not self._stores_parts:
            self.write_run(stored.view(self._part_dtype), lengths)
            return
        highest = -1 if max_token_id is None else max_token_id
        with self._aborting(), thread_pool(1) as pool:
            copied = pool.submit(self._staged.append_file, path, start_bytes, len(stored))
            for first in range(0, len(stored), _PIECE_BYTES):
                piece = stored[first : first + _PIECE_BYTES]
                self._digests.update(piece)
                tokens = piece.view(self._part_dtype)
                self._tally.add_tokens(tokens)
                if max_token_id is None:
                    highest = max(highest, int(tokens.max()))
            copied.result()
            if highest >= self._limit:
                what = "a token id does not fit"
                raise TooLarge(what, path=path, found=highest, expected=f"below {self._limit}")
        self._tally.add_lengths(lengths, highest)

    def _commit(self) -> Manifest:
        """Write the bytes around the tokens, the index and the side file, and make the dataset visible."""
        frame = self._frame(self._tally)
        for piece in frame.tail:
            self._append(piece)
        if frame.head:
            self._staged.write_at(0, frame.head)
        size_bytes = self._staged.tell()
        block_digests, binding = self._digests.finish()
        digests = {DATA: block_digests}
        if frame.index is not None:
            index = self._output.stage_index()
            of_index = FileDigests(index)
            for piece in frame.index:
                index.write(piece)
                of_index.update(piece)
            size_bytes += index.tell()
            digests[frame.index_name], index_binding = of_index.finish()
            binding = frame.joint_binding(binding, index_binding)
        manifest = token_manifest(
            self.format, self._tally, frame, size_bytes=size_bytes, block_digests=digests, binding=binding
        )
        self._output.commit(manifest, frame.index)
        return manifest

    def _close(self) -> None:
        self._output.abort()


def token_manifest(
    format: str,
    tokens: TokenCounts,
    frame: Frame,
    *,
    size_bytes: int,
    block_digests: Mapping[str, tuple[str, ...]],
    binding: str,
) -> Manifest:
    """Return the side file of a token dataset.

    Args:
        format: name of the format.
        tokens: counts of all documents; a `TokenTally` is finished by this.
        frame: provenance, the writer's own options, and `Manifest.starts`.
        size_bytes: size of the data files.
        block_digests: name in the dataset → digests of the file's blocks.
        binding: binding of the data file.
    """
    given = frame.given
    return Manifest(
        format=format,
        num_samples=tokens.num_docs,
        size_bytes=size_bytes,
        num_tokens=tokens.num_tokens,
        max_token_id=tokens.max_token_id if tokens.max_token_id >= 0 else None,
        eos_id=given.eos_id,
        tokenizer=given.tokenizer,
        tokenizer_digest=given.tokenizer_digest,
        digest=tokens.hexdigest(),
        inputs=dict(given.inputs),
        block_digests=dict(block_digests),
        options={**given.options, **frame.options},
        binding=binding,
        starts=frame.starts(),
        tool=f"penstock {penstock.__version__}",
    )

"""What token formats share for writing: documents, counted and digested as they pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._kinds import JoinedRows
from penstock._pool import thread_pool
from penstock.abc import Staged, Store
from penstock.codec.hashes import DocumentDigest
from penstock.codec.tokens import as_tokens
from penstock.errors import ConfigError, TooLarge, Truncated
from penstock.formats._manifest import FileDigests, Provenance
from penstock.formats._writers import require_fields, require_known
from penstock.store.joining import append_range
from penstock.store.local import LocalStore
from penstock.types import Batch, IntArray, Manifest, Sample

_PIECE_BYTES = 1 << 24
_FRESH_PARTS = 1024


class DocumentWriter(Protocol):
    """A writer that takes documents back to back."""

    _path: str

    def write_batch(self, batch: Batch, /) -> None: ...

    def write_run(self, tokens: NDArray[Any], doc_lengths: IntArray, /) -> None: ...


def write_document(self: DocumentWriter, sample: Sample, /) -> None:
    """Add one document: `{"tokens": integers [n]}`."""
    require_fields(sample, self._path)  # pyright: ignore[reportPrivateUsage]
    self.write_batch({name: [value] for name, value in sample.items()})


def write_document_batch(self: DocumentWriter, batch: Batch, /) -> None:
    """Add documents: `{"tokens": a list of integer arrays, or one [k, n]}`."""
    self.write_run(*document_run(batch, self._path))  # pyright: ignore[reportPrivateUsage]


def token_options(options: Mapping[str, Any], own: Sequence[str], path: str) -> tuple[dict[str, Any], Provenance]:
    """The options of `penstock.create` that are given: a format's own ones, and what is said of the data.

    Raises:
        ConfigError: an unknown option.
    """
    require_known(options, [*own, *(one.name for one in dataclasses.fields(Provenance))], path)
    given = {name: value for name, value in options.items() if value is not None}
    mine = {name: given.pop(name) for name in own if name in given}
    return mine, Provenance(**given)


class _Counted(Protocol):
    """What is known of all documents of a dataset."""

    @property
    def num_docs(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def max_token_id(self) -> int: ...

    def hexdigest(self) -> str: ...


class TokenTally:
    """Counts, largest id and digest of the documents that a writer takes.

    Args:
        keep_lengths: for `lengths()`; takes 4 bytes a document, 8 where one has 2^32 tokens or more.

    Attributes:
        expected: gives the digest where it is known without a look at the documents; see `ExpectsDigest`.
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
        """Add tokens alone, of documents whose lengths come by `add_lengths`."""
        if self.expected is None:
            self._digest.update(tokens, np.empty(0, np.int64))

    def add_lengths(self, doc_lengths: IntArray, max_token_id: int) -> None:
        """Add int64[n_docs] lengths alone, and the largest id of these documents (-1: no token)."""
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
        """All document lengths, in runs of at most 2^16."""
        for run in (*self._lengths, *self._fresh):
            for start in range(0, len(run), 1 << 16):
                yield run[start : start + (1 << 16)].astype(np.int64)

    def hexdigest(self) -> str:
        """The document digest; nothing can be added after it."""
        return self._digest.hexdigest() if self.expected is None else self.expected()


def read_part(
    path: str, start_bytes: int, doc_lengths: IntArray, dtype: np.dtype[Any], limit: int, max_token_id: int | None
) -> tuple[NDArray[np.uint8], IntArray]:
    """The tokens of a part that lie back to back in a local file, and what they are cut into.

    Args:
        path: local file.
        start_bytes: where its tokens begin.
        doc_lengths: int64[n_docs], in tokens.
        dtype: of the tokens.
        limit: ids must be below it.
        max_token_id: the largest id, as far as it is known.

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


def append_part(
    staged: Staged,
    path: str,
    start_bytes: int,
    stored: NDArray[np.uint8],
    dtype: np.dtype[Any],
    digests: FileDigests,
    tally: TokenTally,
    limit: int,
    max_token_id: int | None,
) -> int:
    """Append tokens that lie in a local file, copied by the kernel, and digest them meanwhile.

    Args:
        staged: what they are appended to.
        path: local file.
        start_bytes: where they begin.
        stored: uint8[n_bytes]: the same bytes, mapped.
        dtype: of the tokens.
        digests: of the file that is written.
        tally: gets tokens, not lengths.
        limit: ids must be below it.
        max_token_id: the largest id, known to be below it; None: they are looked at.

    Returns:
        The largest id; -1 where there is no token.

    Raises:
        TooLarge: an id is not below `limit`; some of the tokens are written.
    """
    highest = -1 if max_token_id is None else max_token_id
    with thread_pool(1) as pool:
        copied = pool.submit(staged.append_file, path, start_bytes, len(stored))
        for first in range(0, len(stored), _PIECE_BYTES):
            piece = stored[first : first + _PIECE_BYTES]
            digests.update(piece)
            tokens = piece.view(dtype)
            tally.add_tokens(tokens)
            if max_token_id is None:
                highest = max(highest, int(tokens.max()))
        copied.result()
    if highest >= limit:
        raise TooLarge("a token id does not fit", path=path, found=highest, expected=f"below {limit}")
    return highest


def take_joined(
    rows: JoinedRows,
    store: Store,
    staged: Staged,
    head_bytes: int,
    digests: FileDigests,
    tally: TokenTally,
    limit: int,
) -> None:
    """Append documents that lie in ranges of files of the store, of which all is known; see `JoinedRows`.

    Args:
        rows: all documents.
        store: where they lie, and the file will be.
        staged: the file, which holds its head.
        head_bytes: of that head.
        digests: of the file.
        tally: gets what is known.
        limit: ids must be below it.

    Raises:
        TooLarge: an id is not.
    """
    if rows.max_token_id >= limit:
        raise TooLarge("a token id does not fit", path=staged.path, found=rows.max_token_id, expected=f"below {limit}")
    tally.expected = lambda: rows.digest
    for run in rows.lengths():
        tally.add_lengths(run, rows.max_token_id)
    for extent in rows.ranges:
        append_range(staged, store, extent)
    digests.take(head_bytes + rows.size_bytes, rows.blocks, rows.rest())


def document_run(batch: Batch, path: str) -> tuple[NDArray[Any], IntArray]:
    """A batch of documents as one run: integers [n_tokens] and their int64[n_docs] lengths.

    Raises:
        ConfigError: a field that is not `tokens`, or values that are no rows of integers.
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
    """int64[n_docs]: document lengths that fill a run exactly; raises `ConfigError`."""
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


def token_manifest(
    format_name: str,
    tally: _Counted,
    given: Provenance,
    options: Mapping[str, Any],
    *,
    size_bytes: int,
    block_digests: Mapping[str, tuple[str, ...]],
    binding: str,
    starts: str | None = None,
) -> Manifest:
    """The side file of a token dataset.

    Args:
        format_name: name of the format.
        tally: of all documents; a `TokenTally` is finished by this.
        given: what the caller said about the data.
        options: the writer's own options.
        size_bytes: bytes of the data files.
        block_digests: name in the dataset → digests of the file's blocks.
        binding: of the data file.
        starts: see `Manifest`.
    """
    return Manifest(
        format=format_name,
        num_samples=tally.num_docs,
        size_bytes=size_bytes,
        num_tokens=tally.num_tokens,
        max_token_id=tally.max_token_id if tally.max_token_id >= 0 else None,
        eos_id=given.eos_id,
        tokenizer=given.tokenizer,
        tokenizer_digest=given.tokenizer_digest,
        digest=tally.hexdigest(),
        inputs=dict(given.inputs),
        block_digests=dict(block_digests),
        options={**given.options, **options},
        binding=binding,
        starts=starts,
        tool=f"penstock {penstock.__version__}",
    )

"""What token formats share for writing: documents counted and digested as they pass, and the side file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._buffers import byte_view
from penstock.abc import Buffer, Staged, Store
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher, DocumentDigest
from penstock.codec.tokens import as_tokens
from penstock.errors import ConfigError, TooLarge
from penstock.store.local import output_exists
from penstock.store.side_file import EDGE_BYTES, edge_binding, file_binding, publish_beside, stage_side_file
from penstock.types import Batch, IntArray, Manifest

_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What every token writer takes.

    Attributes:
        eos_id: id that ends every document given, recorded in the side file; nothing is added to documents.
        tokenizer: name of the tokenizer, recorded; and `tokenizer_digest` its digest.
        inputs: input path (relative) → digest, recorded.
        options: further options of the preparation, recorded.
    """

    eos_id: int | None = None
    tokenizer: str | None = None
    tokenizer_digest: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class TokenTally:
    """Counts, largest id and digest of the documents that a writer takes.

    Args:
        keep_lengths: for `lengths()`; takes 4 bytes a document, 8 where one has 2^32 tokens or more.
    """

    __slots__ = ("_digest", "_keep_lengths", "_lengths", "max_token_id", "num_docs", "num_tokens")

    def __init__(self, *, keep_lengths: bool = True) -> None:
        self._digest = DocumentDigest()
        self._keep_lengths = keep_lengths
        self._lengths: list[NDArray[Any]] = []
        self.num_docs = 0
        self.num_tokens = 0
        self.max_token_id = -1

    def add(self, tokens: NDArray[Any], doc_lengths: IntArray, max_token_id: int) -> None:
        """Add uint[n_tokens] and the lengths of the documents in it."""
        self.add_tokens(tokens)
        self.add_lengths(doc_lengths, max_token_id)

    def add_tokens(self, tokens: NDArray[Any]) -> None:
        """Add tokens alone, of documents whose lengths come by `add_lengths`."""
        self._digest.update(tokens, np.empty(0, np.int64))

    def add_lengths(self, doc_lengths: IntArray, max_token_id: int) -> None:
        """Add int64[n_docs] lengths alone, and the largest id of these documents (-1: no token)."""
        self._digest.update_lengths(doc_lengths)
        if self._keep_lengths:
            short = not len(doc_lengths) or int(doc_lengths.max()) < 1 << 32
            self._lengths.append(doc_lengths.astype(np.uint32 if short else np.int64))
        if len(self._lengths) >= 1024:
            self._lengths = [np.concatenate(self._lengths)]
        self.num_docs += len(doc_lengths)
        self.num_tokens += int(doc_lengths.sum())
        self.max_token_id = max(self.max_token_id, max_token_id)

    def lengths(self) -> Iterator[IntArray]:
        """All document lengths, in runs of at most 2^16."""
        for run in self._lengths:
            for start in range(0, len(run), 1 << 16):
                yield run[start : start + (1 << 16)].astype(np.int64)

    def hexdigest(self) -> str:
        """The document digest; nothing can be added after it."""
        return self._digest.hexdigest()


class FileDigests:
    """Block digests and binding of a file as it is written.

    Args:
        staged: the file. Where its header is set at the end, its first block is read back from it.
        header_bytes: so many bytes at its start are set at the end.
    """

    __slots__ = ("_block_bytes", "_hasher", "_header_bytes", "_size_bytes", "_staged")

    def __init__(self, staged: Staged, header_bytes: int = 0, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._staged = staged
        self._header_bytes = header_bytes
        self._block_bytes = block_bytes
        self._hasher = BlockHasher(block_bytes)
        self._size_bytes = 0

    def update(self, data: Buffer) -> None:
        """Add the next bytes of the file."""
        view = byte_view(data)
        late_bytes = max(0, self._block_bytes - self._size_bytes) if self._header_bytes else 0
        self._size_bytes += len(view)
        self._hasher.update(view[late_bytes:])

    def finish(self) -> tuple[tuple[str, ...], str]:
        """`(block digests, binding)`, once everything is written."""
        staged, size_bytes = self._staged, self._size_bytes
        first = BlockHasher(self._block_bytes)
        late_bytes = min(size_bytes, self._block_bytes) if self._header_bytes else 0
        for start_bytes in range(0, late_bytes, _READ_BYTES):
            first.update(staged.read_at(start_bytes, min(_READ_BYTES, late_bytes - start_bytes)))
        head = staged.read_at(0, EDGE_BYTES)
        tail = staged.read_at(max(0, size_bytes - EDGE_BYTES), EDGE_BYTES)
        return first.finish() + self._hasher.finish(), edge_binding(size_bytes, head, tail)


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
    with ThreadPoolExecutor(1) as pool:
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


def document_run(batch: Batch, path: str) -> tuple[NDArray[Any], IntArray]:
    """A batch of documents as one run: integers [n_tokens] and their int64[n_docs] lengths.

    Raises:
        ConfigError: a field that is not `tokens`, or values that are no rows of integers.
    """
    if batch.keys() != {"tokens"}:
        raise ConfigError(
            "a token format holds documents of tokens only",
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
            "document lengths and tokens differ", found=f"{num_tokens} tokens", expected=f"{int(lengths.sum())}"
        )
    return lengths


def token_manifest(
    format_name: str,
    tally: TokenTally,
    given: TokenOptions,
    options: Mapping[str, Any],
    *,
    size_bytes: int,
    block_digests: Mapping[str, tuple[str, ...]],
    binding: str,
) -> Manifest:
    """The side file of a token dataset.

    Args:
        format_name: name of the format.
        tally: of all documents; finished by this.
        given: what the caller said about the data.
        options: the writer's own options.
        size_bytes: bytes of the data files.
        block_digests: name in the dataset → digests of the file's blocks.
        binding: of the data file.
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
        tool=f"penstock {penstock.__version__}",
    )


def commit_with_side_file(
    store: Store, data: Staged, side_path: str, manifest: Manifest, *, overwrite: bool, beside: Sequence[Staged] = ()
) -> None:
    """Publish a data file, which makes the dataset visible, and what stands beside it: see `store.side_file`.

    Args:
        store: where they are.
        data: the file.
        side_path: of its side file.
        manifest: for the side file.
        overwrite: replace the dataset that is there.
        beside: further files, from `stage_beside`.

    Raises:
        ConfigError: the dataset appeared meanwhile and `overwrite` is false; what is beside it is not touched.
    """
    replaces = store.exists(data.path)
    if replaces and not overwrite:
        raise output_exists(data.path)
    data.sync()
    side = stage_side_file(store, side_path, manifest, replaces=replaces)

    def landed() -> bool:
        return store.exists(data.path) and (not replaces or file_binding(store, data.path) == manifest.binding)

    publish_beside(store, [*beside, side], data.commit, landed)

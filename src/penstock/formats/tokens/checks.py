"""Checks shared by token formats: ids against a vocabulary, and EOS tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock._secrets import redact
from penstock.codec.hashes import DocumentDigest
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.errors import Corrupt
from penstock.formats._findings import MOST_FINDINGS, Run
from penstock.types import Depth, Extent, Finding, IntArray, Manifest, OpenOptions, TokenArray

_PLACES = 64
_PLACE_TOKENS = 4096
_SCAN_TOKENS = 1 << 22
_SAMPLE_DOCS = 1024
_DOCS_STEP = 1 << 20


class ReadTokens(Protocol):
    """Tokens that can be read."""

    def tokens(self, start: int, stop: int) -> TokenArray: ...


class CheckedTokens(ReadTokens, Protocol):
    """Tokens with places in a file, such as a `TokenFile`."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def num_tokens(self) -> int: ...

    def gather(self, starts: IntArray, length: int) -> TokenArray: ...

    def extent(self, start: int, stop: int) -> Extent: ...


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens to check.

    Attributes:
        format: the first part of codes.
        path: of their file.
        file: reads them.
        skips_corrupt: tokens that aren't ids are found by another check, and skipped here.
    """

    format: str
    path: str
    file: CheckedTokens
    skips_corrupt: bool = False

    def offset_bytes(self, token: int) -> int:
        """Return the offset of a token in the file."""
        return self.file.extent(token, token).offset_bytes


def sampled_ranges(num_tokens: int, depth: Depth) -> Iterator[tuple[int, int]]:
    """Yield the token ranges to read: all at depth `full`, else up to 64 evenly spread ones of 4,096 tokens."""
    if depth == "full" or num_tokens <= _PLACES * _PLACE_TOKENS:
        for start in range(0, num_tokens, _SCAN_TOKENS):
            yield start, min(num_tokens, start + _SCAN_TOKENS)
        return
    for start in np.linspace(0, num_tokens - _PLACE_TOKENS, _PLACES, dtype=np.int64).tolist():
        yield start, start + _PLACE_TOKENS


@dataclass(frozen=True, slots=True)
class IdsTask:
    """Tokens `[start, stop)` to search for ids of `vocab_size` or more."""

    file: CheckedTokens
    path: str
    start: int
    stop: int
    vocab_size: int
    skips_corrupt: bool

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return f"{redact(self.path)}, token ids {self.start} to {self.stop}"


def wrong_ids(task: IdsTask) -> list[int]:
    """Return the number of ids beyond the vocabulary, then their first places; an empty list if all are in it."""
    try:
        tokens = task.file.tokens(task.start, task.stop)
    except Corrupt:
        if not task.skips_corrupt:
            raise
        return []
    if int(tokens.max(initial=0)) < task.vocab_size:
        return []
    wrong = np.flatnonzero(tokens >= task.vocab_size)
    return [len(wrong), *(task.start + wrong[:MOST_FINDINGS]).tolist()]


def check_vocabulary(run: TokenRun, vocab_size: int, depth: Depth, do: Run = map) -> Iterator[Finding]:
    """Yield findings of the first ids of `vocab_size` or more, and of the number of the others; by tasks."""
    fix = "Pack again with the tokenizer of this vocabulary, or correct --vocab-size"
    ranges = sampled_ranges(run.file.num_tokens, depth)
    tasks = (IdsTask(run.file, run.path, start, stop, vocab_size, run.skips_corrupt) for start, stop in ranges)
    places, count = _first_of(do(wrong_ids, tasks))
    for place in places:
        found = f"id {int(run.file.tokens(place, place + 1)[0])} at token {place}"
        where = run.offset_bytes(place)
        yield Finding(f"{run.format}.token-range", "error", run.path, where, found, f"0 to {vocab_size - 1}", fix)
    if count:
        yield Finding(f"{run.format}.token-range", "error", run.path, None, f"{count} more ids beyond the vocabulary")


def _first_of(results: Iterable[list[int]]) -> tuple[list[int], int]:
    """Return the first places of the results of tasks, and the number of the others."""
    places, count = list[int](), 0
    for found in results:
        count += sum(found[:1])
        places += found[1 : 1 + MOST_FINDINGS - len(places)]
    return places, count - len(places)


@dataclass(frozen=True, slots=True)
class EndsTask:
    """Documents by number, int64[k], and their borders in tokens."""

    file: CheckedTokens
    path: str
    docs: IntArray
    starts: IntArray
    stops: IntArray
    eos_id: int
    skips_corrupt: bool

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return f"{redact(self.path)}, the ends of {len(self.docs)} documents starting at {int(self.docs[0])}"


def wrong_ends(task: EndsTask) -> list[int]:
    """Return the number of documents that don't end in EOS, then the first of them; an empty list if all do."""
    filled = task.stops > task.starts
    found = np.zeros(len(task.docs), np.bool_)
    try:
        found[filled] = task.file.gather(task.stops[filled] - 1, 1)[:, 0] == task.eos_id
    except Corrupt:
        if not task.skips_corrupt:
            raise
        return []
    missing = task.docs[~found]
    return [len(missing), *missing[:MOST_FINDINGS].tolist()] if len(missing) else []


def check_eos(run: TokenRun, doc_starts: IntArray, eos_id: int, depth: Depth, do: Run = map) -> Iterator[Finding]:
    """Yield findings of the first documents that don't end in `eos_id`, and of the number of the others; by tasks."""
    tasks = (
        EndsTask(run.file, run.path, docs, doc_starts[docs], doc_starts[docs + 1], eos_id, run.skips_corrupt)
        for docs in _doc_runs(len(doc_starts) - 1, depth)
        if len(docs)
    )
    fix = "Pack again with --eos, or correct --eos-id"
    docs, count = _first_of(do(wrong_ends, tasks))
    for doc in docs:
        start, stop = int(doc_starts[doc]), int(doc_starts[doc + 1])
        last_id = f"id {int(run.file.tokens(stop - 1, stop)[0])}" if stop > start else "no token"
        offset_bytes, found = run.offset_bytes(max(start, stop - 1)), f"document {doc} ends with {last_id}"
        yield Finding(f"{run.format}.no-eos", "error", run.path, offset_bytes, found, f"the EOS id {eos_id}", fix)
    if count:
        yield Finding(f"{run.format}.no-eos", "error", run.path, None, f"{count} more documents without EOS")


def check_options(
    run: TokenRun,
    options: OpenOptions,
    doc_starts: IntArray | None,
    depth: Depth,
    do: Run = map,
    known: int | None = None,
) -> Iterator[Finding]:
    """Yield findings of ids beyond the vocabulary, and of documents that don't end in `options.eos_id`.

    Args:
        run: the tokens.
        options: `vocab_size` and `eos_id`, either of which may be None.
        doc_starts: int64[n_docs + 1]; None if they are unknown.
        depth: depth of the check.
        do: runs the tasks.
        known: vocabulary size if `options` has none, such as one more than the largest recorded id.
    """
    vocab_size = known if options.vocab_size is None else options.vocab_size
    if vocab_size is not None and vocab_size < 1 << 8 * run.file.dtype.itemsize:
        yield from check_vocabulary(run, vocab_size, depth, do)
    # Documents may end in other ids than the recorded EOS.
    if options.eos_id is not None and doc_starts is not None:
        yield from check_eos(run, doc_starts, options.eos_id, depth, do)


def document_ends(file: ReadTokens, num_tokens: int, eos_id: int) -> IntArray:
    """Return int64[n]: the token after each EOS token."""
    found = [np.empty(0, np.int64)]
    for start in range(0, num_tokens, _SCAN_TOKENS):
        tokens = file.tokens(start, min(num_tokens, start + _SCAN_TOKENS))
        found.append(np.flatnonzero(tokens == eos_id) + start + 1)
    return np.concatenate(found)


def stored_too_narrow(tokens: TokenArray, doc_lengths: IntArray) -> bool:
    """Return whether tokens of 1 or 2 bytes are likely halves of wider ones.

    Then every document has an even number of them, and every other one is the upper half of an id: hardly ever above
    16, as vocabularies end near 2^20; or, of 2-byte ids, smaller on the whole than the lower half.

    Args:
        tokens: uint[n], from the start of the data.
        doc_lengths: int64[n_docs] of all documents, in tokens.
    """
    if tokens.dtype.itemsize == 4 or len(tokens) < 64 or (doc_lengths % 2).any():
        return False
    lower, upper = tokens[: len(tokens) & ~1].reshape(-1, 2).T
    if len(np.unique(lower)) <= 32:
        return False
    # Documents that are even by chance, or all cut to one length, prove nothing.
    proven = len(doc_lengths) >= 32 and len(np.unique(doc_lengths)) >= 8
    return int(upper.max()) <= 16 or bool(proven and upper.mean() < 0.75 * lower.mean())


def are_others(manifest: Manifest | None, num_tokens: int, runs: Iterable[tuple[TokenArray, IntArray]]) -> bool:
    """Return whether documents differ from those of a side file: more tokens, or as many with another digest.

    With fewer tokens, or without a digest, the side file proves nothing.

    Args:
        manifest: the side file, even if the data differs.
        num_tokens: of all documents.
        runs: tokens, and the int64 lengths of their documents.
    """
    if manifest is None or manifest.digest is None or manifest.num_tokens is None:
        return False
    if manifest.num_tokens != num_tokens:
        return num_tokens > manifest.num_tokens
    return manifest.digest != digest_like(manifest.digest, runs)


def digest_like(digest: str, runs: Iterable[tuple[TokenArray, IntArray]]) -> str:
    """Return the digest of documents, of the version of `digest`; `runs` are tokens and lengths of documents."""
    joined, old = JoinedDigest(), DocumentDigest()
    for tokens, doc_lengths in runs:
        (joined if is_joinable(digest) else old).update(tokens, doc_lengths)
    return joined.text() if is_joinable(digest) else old.hexdigest()


def stored_too_wide(tokens: TokenArray) -> bool:
    """Return whether tokens of 4 bytes are likely pairs of 2-byte ones.

    Then many are beyond any vocabulary, and few different halves make many different wholes.

    Args:
        tokens: uint[n], from the start of the data.
    """
    if tokens.dtype.itemsize != 4 or len(tokens) < 64:
        return False
    tokens = np.ascontiguousarray(tokens[: 1 << 14])
    halves = np.unique(tokens.view(np.uint16))
    return bool(np.mean(tokens >= 1 << 20) > 0.05) and 4 * len(np.unique(tokens)) > 5 * len(halves)


def _doc_runs(n_docs: int, depth: Depth) -> Iterator[IntArray]:
    if depth != "full" and n_docs > _SAMPLE_DOCS:
        yield np.linspace(0, n_docs - 1, _SAMPLE_DOCS, dtype=np.int64)
        return
    for first in range(0, n_docs, _DOCS_STEP):
        yield np.arange(first, min(n_docs, first + _DOCS_STEP))

"""What token formats share for checking: ids against a vocabulary, and EOS tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock._secrets import redact
from penstock.codec.hashes import DocumentDigest
from penstock.codec.joined_digest import JoinedDigest, is_joinable
from penstock.formats._findings import MOST_FINDINGS, Run
from penstock.types import Depth, Extent, Finding, IntArray, Manifest, TokenArray

_PLACES = 64
_PLACE_TOKENS = 4096
_SCAN_TOKENS = 1 << 22
_SAMPLE_DOCS = 1024
_DOCS_STEP = 1 << 20


class CheckedTokens(Protocol):
    """Tokens that know their places: a `TokenFile`, or what a format puts over one."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def num_tokens(self) -> int: ...

    def tokens(self, start: int, stop: int) -> TokenArray: ...

    def gather(self, starts: IntArray, length: int) -> TokenArray: ...

    def extent(self, start: int, stop: int) -> Extent: ...


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens to check, and what their findings are called.

    Attributes:
        format: format name, the first part of codes.
        path: file that the tokens stand in.
        file: the tokens.
    """

    format: str
    path: str
    file: CheckedTokens

    def offset_bytes(self, token: int) -> int:
        """Place of a token in the file."""
        return self.file.extent(token, token).offset_bytes


def sampled_ranges(num_tokens: int, depth: Depth) -> Iterator[tuple[int, int]]:
    """Token ranges to read: all of them at depth `full`, else up to 64 evenly spread ones of 4,096."""
    if depth == "full" or num_tokens <= _PLACES * _PLACE_TOKENS:
        for start in range(0, num_tokens, _SCAN_TOKENS):
            yield start, min(num_tokens, start + _SCAN_TOKENS)
        return
    for start in np.linspace(0, num_tokens - _PLACE_TOKENS, _PLACES, dtype=np.int64).tolist():
        yield start, start + _PLACE_TOKENS


@dataclass(frozen=True, slots=True)
class IdsTask:
    """Tokens `[start, stop)`, of which ids from `vocab_size` on are looked for."""

    file: CheckedTokens
    path: str
    start: int
    stop: int
    vocab_size: int

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{redact(self.path)}, token ids {self.start} to {self.stop}"


def wrong_ids(task: IdsTask) -> list[int]:
    """How many ids are beyond the vocabulary, and the first of their places; nothing where none is."""
    tokens = task.file.tokens(task.start, task.stop)
    if int(tokens.max(initial=0)) < task.vocab_size:
        return []
    wrong = np.flatnonzero(tokens >= task.vocab_size)
    return [len(wrong), *(task.start + wrong[:MOST_FINDINGS]).tolist()]


def check_vocabulary(run: TokenRun, vocab_size: int, depth: Depth, do: Run = map) -> Iterator[Finding]:
    """Ids of `vocab_size` or more: the first ones by place, the rest as a count; by tasks."""
    places: list[int] = []
    count = 0
    ranges = sampled_ranges(run.file.num_tokens, depth)
    tasks = (IdsTask(run.file, run.path, start, stop, vocab_size) for start, stop in ranges)
    for found in do(wrong_ids, tasks):
        if found:
            count += found[0]
            places += found[1 : 1 + MOST_FINDINGS - len(places)]
    for place in places:
        yield Finding(
            f"{run.format}.token-range",
            "error",
            run.path,
            run.offset_bytes(place),
            f"id {int(run.file.tokens(place, place + 1)[0])} at token {place}",
            f"0 to {vocab_size - 1}",
            "Pack again with the tokenizer of this vocabulary, or correct --vocab-size",
        )
    if count > len(places):
        yield _more(run, "token-range", count - len(places), "ids beyond the vocabulary")


@dataclass(frozen=True, slots=True)
class EndsTask:
    """Documents by their numbers: int64[k]; `starts` and `stops` are their borders, in tokens."""

    file: CheckedTokens
    path: str
    docs: IntArray
    starts: IntArray
    stops: IntArray
    eos_id: int

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{redact(self.path)}, the ends of {len(self.docs)} documents starting at {int(self.docs[0])}"


def wrong_ends(task: EndsTask) -> list[int]:
    """How many documents don't end in the EOS, and the first of them; nothing where all do."""
    filled = task.stops > task.starts
    found = np.zeros(len(task.docs), np.bool_)
    found[filled] = task.file.gather(task.stops[filled] - 1, 1)[:, 0] == task.eos_id
    missing = task.docs[~found]
    return [len(missing), *missing[:MOST_FINDINGS].tolist()] if len(missing) else []


def check_eos(run: TokenRun, doc_starts: IntArray, eos_id: int, depth: Depth, do: Run = map) -> Iterator[Finding]:
    """Documents that do not end in `eos_id`: the first ones one by one, the rest as a count; by tasks."""
    wrong: list[int] = []
    count = 0
    tasks = (
        EndsTask(run.file, run.path, docs, doc_starts[docs], doc_starts[docs + 1], eos_id)
        for docs in _doc_runs(len(doc_starts) - 1, depth)
        if len(docs)
    )
    for found in do(wrong_ends, tasks):
        if found:
            count += found[0]
            wrong += found[1 : 1 + MOST_FINDINGS - len(wrong)]
    for doc in wrong:
        start, stop = int(doc_starts[doc]), int(doc_starts[doc + 1])
        last_id = f"id {int(run.file.tokens(stop - 1, stop)[0])}" if stop > start else "no token"
        yield Finding(
            f"{run.format}.no-eos",
            "error",
            run.path,
            run.offset_bytes(max(start, stop - 1)),
            f"document {doc} ends with {last_id}",
            f"the EOS id {eos_id}",
            "Pack again with --eos, or correct --eos-id",
        )
    if count > len(wrong):
        yield _more(run, "no-eos", count - len(wrong), "documents without EOS")


def stored_too_narrow(tokens: TokenArray, doc_lengths: IntArray) -> bool:
    """Whether tokens of 1 or 2 bytes are likely halves of wider ones.

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
    """Whether documents are not those that a side file knows: more tokens than it counts, or as many with other ones.

    Where they have fewer the side file can't prove anything, and without a digest neither.

    Args:
        manifest: the side file, whether it fits or not.
        num_tokens: of all documents.
        runs: tokens, and the int64 lengths of the documents in them.
    """
    if manifest is None or manifest.digest is None or manifest.num_tokens is None:
        return False
    if manifest.num_tokens != num_tokens:
        return num_tokens > manifest.num_tokens
    old, joined = DocumentDigest(), JoinedDigest()
    for tokens, doc_lengths in runs:
        (joined if is_joinable(manifest.digest) else old).update(tokens, doc_lengths)
    return manifest.digest != (joined.text() if is_joinable(manifest.digest) else old.hexdigest())


def stored_too_wide(tokens: TokenArray) -> bool:
    """Whether tokens of 4 bytes are likely pairs of 2-byte ones.

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


def _more(run: TokenRun, what: str, count: int, words: str) -> Finding:
    return Finding(f"{run.format}.{what}", "error", run.path, None, f"{count} more {words}", None, None)

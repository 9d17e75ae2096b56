"""Token files made of parts without reading their tokens: the bytes around the tokens, and joined digests.

If a store joins the parts, no token is read here. So the side file of such a file has no digests of 64 MiB blocks, but
digests of runs of documents, under the name `documents`: each of version 2, which includes the number of documents. A
run ends at the first document border at or after a multiple of 2^24 tokens, independent of the ends of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import redact
from penstock.codec.hashes import DocumentDigest, token_block_digest
from penstock.codec.joined_digest import JoinedDigest, documents_digest_v2, documents_in, is_joinable, join_digests
from penstock.errors import PenstockError
from penstock.formats._findings import Run
from penstock.formats._side_checks import RESTORE, check_files
from penstock.formats.tokens.checks import CheckedTokens, ReadTokens, TokenRun
from penstock.formats.tokens.common import runs_of
from penstock.formats.tokens.writer import Frame, TokenTally, token_manifest
from penstock.store.base import Store
from penstock.types import Finding, IntArray, Manifest, TokenArray

DOCUMENTS = "documents"
"""Name of the digests of runs of documents in a side file's block digests."""

RUN_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class JoinedTokens:
    """Documents stored in parts, back to back.

    Attributes:
        lengths: yields runs of int64[k], the tokens of each document.
        num_docs, num_tokens: totals.
        max_token_id: the largest id, -1 without tokens.
        digests: digests of runs of documents: see `RunDigests`.
        token_bytes: width of the tokens, little-endian.
    """

    lengths: Callable[[], Iterable[IntArray]]
    num_docs: int
    num_tokens: int
    max_token_id: int
    digests: tuple[str, ...]
    token_bytes: int

    def hexdigest(self) -> str:
        """Return the document digest, of version 2."""
        return join_digests(self.digests)


@runtime_checkable
class JoinsTokens(Protocol):
    """Format that stores the tokens of parts unchanged."""

    def join(self, options: Mapping[str, Any], tokens: JoinedTokens, path: str, /) -> Frame | None:
        """Return the bytes around the tokens; None if this dataset stores tokens otherwise. Options as in `create`."""
        ...


def measured_manifest(
    format: str,
    runs: Iterable[tuple[TokenArray, IntArray]],
    known: Manifest | None,
    frame: Frame,
    *,
    size_bytes: int,
    block_digests: Mapping[str, tuple[str, ...]],
    binding: str,
) -> Manifest:
    """Count and digest documents of another tool, and return their side file; other arguments as of `token_manifest`.

    `runs` yields tokens and the lengths of their documents. If `known`, the previous side file, has digests of runs of
    documents, the new one has them too.
    """
    tally, documents = TokenTally(keep_lengths=False), RunDigests()
    has_runs = known is not None and DOCUMENTS in known.block_digests
    for tokens, lengths in runs:
        tally.add(tokens, lengths, int(tokens.max()) if len(tokens) else -1)
        if has_runs:
            documents.update(tokens, lengths)
    made = token_manifest(format, tally, frame, size_bytes=size_bytes, block_digests=block_digests, binding=binding)
    if not has_runs:
        return made
    digests = documents.finish()
    return replace(made, digest=join_digests(digests), block_digests={**made.block_digests, DOCUMENTS: digests})


# --- runs of documents -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RunDigests:
    """Digests of the runs of a dataset's documents, which are added in order."""

    num_tokens: int = 0
    _begin: int = 0
    _done: list[str] = field(default_factory=list[str])
    _run: JoinedDigest = field(default_factory=JoinedDigest)

    def cut(self, lengths: IntArray) -> list[int]:
        """Return the ends of pieces of the next documents, each within one run; the last is `len(lengths)`."""
        ends = self.num_tokens + np.cumsum(lengths)
        stops: list[int] = []
        goal = _goal_after(self._begin)
        while len(ends) and goal <= int(ends[-1]):
            stops.append(int(np.searchsorted(ends, goal)) + 1)
            goal = _goal_after(int(ends[stops[-1] - 1]))
        return stops if stops and stops[-1] == len(lengths) else [*stops, len(lengths)]

    def add(self, digest: str, num_tokens: int) -> None:
        """Add the documents of one piece by their digest."""
        self._run.update_digest(digest)
        self.num_tokens += num_tokens
        if self.num_tokens >= _goal_after(self._begin):
            self._close()

    def update(self, tokens: NDArray[Any], lengths: IntArray) -> None:
        """Add documents: unsigned ids [n_tokens], and int64[n_docs]."""
        first, place = 0, 0
        for stop in self.cut(lengths):
            count = int(lengths[first:stop].sum())
            self.add(documents_digest_v2(tokens[place : place + count], lengths[first:stop]), count)
            first, place = stop, place + count

    def finish(self) -> tuple[str, ...]:
        self._close()
        return tuple(self._done)

    def _close(self) -> None:
        if self._run.num_docs:
            self._done.append(self._run.text())
        self._run, self._begin = JoinedDigest(), self.num_tokens


def _goal_after(num_tokens: int) -> int:
    return (num_tokens // RUN_TOKENS + 1) * RUN_TOKENS


# --- checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Run of documents to digest, starting at token `start`."""

    file: CheckedTokens
    path: str
    start: int
    lengths: IntArray

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return f"{self.path}, {len(self.lengths)} documents from token {self.start}"


def run_digest(task: DocumentsTask) -> str:
    """Return the digest of a run of documents, or the message of a read error."""
    try:
        tokens = task.file.tokens(task.start, task.start + int(task.lengths.sum()))
    except PenstockError as error:
        return str(error)
    return documents_digest_v2(tokens, task.lengths)


def check_recorded(
    store: Store,
    format: str,
    side_path: str,
    manifest: Manifest,
    files: Mapping[str, str],
    documents: tuple[TokenRun, IntArray] | None,
    run: Run,
) -> Iterator[Finding]:
    """Compare every byte of files with their side file, and `documents` if known; each block and each run is a task.

    Documents are the tokens, and the first of each document with the number of tokens, int64[n_docs + 1]. Without
    digests of their runs, that of all documents is compared, unless blocks differ already.
    """
    blocks = list(check_files(store, format, side_path, manifest, files, run, others=[DOCUMENTS]))
    yield from blocks
    if documents is None:
        return
    tokens, starts = documents
    stated = [digest for digest in manifest.block_digests.get(DOCUMENTS, ()) if is_joinable(digest)]
    if not stated:
        found = list(check_digest(tokens.format, tokens.path, tokens.file, starts, manifest, run))
        yield from [] if blocks else found  # the tasks are the same, as shares count them
        return
    stops = np.cumsum([documents_in(digest) for digest in stated])
    if int(stops[-1]) != len(starts) - 1:
        found, expected = f"{len(starts) - 1} documents", f"{stops[-1]}, as recorded in the side file"
        yield Finding(f"{tokens.format}.digest", "error", tokens.path, None, found, expected, RESTORE)
        return
    ranges = list(zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True))
    tasks = (
        DocumentsTask(tokens.file, tokens.path, int(starts[first]), np.diff(starts[first : stop + 1]))
        for first, stop in ranges
    )
    for (first, stop), expected, found in zip(ranges, stated, run(run_digest, tasks), strict=True):
        if found != expected:
            where = tokens.offset_bytes(int(starts[first]))
            what = f"documents {first} to {stop} have the digest {found}"
            yield Finding(f"{tokens.format}.digest", "error", tokens.path, where, what, expected, RESTORE)
    if manifest.digest is not None and manifest.digest != (joined := join_digests(stated)):
        yield _other_documents(tokens.format, tokens.path, joined, manifest)


def _other_documents(format: str, path: str, found: str, manifest: Manifest) -> Finding:
    what, stated = f"documents with the digest {found}", f"{manifest.digest}, as recorded in the side file"
    return Finding(f"{format}.digest", "error", path, None, what, stated, RESTORE)


@dataclass(frozen=True, slots=True)
class StatedTask:
    """Tokens `[start, stop)` to digest, and to search for the largest id; with `lengths`, whole documents."""

    file: ReadTokens
    path: str
    start: int
    stop: int
    lengths: IntArray | None

    @property
    def described(self) -> str:
        """Name of the task in errors."""
        return f"{redact(self.path)}, documents in tokens {self.start} to {self.stop}"


def stated_facts(task: StatedTask) -> list[Any]:
    """Return digest and largest id (-1: no token) of a run; nothing if it is unreadable (reported elsewhere)."""
    try:
        tokens = task.file.tokens(task.start, task.stop)
    except PenstockError:
        return []
    lengths = task.lengths
    found = token_block_digest(tokens).hex() if lengths is None else documents_digest_v2(tokens, lengths)
    return [found, int(tokens.max()) if len(tokens) else -1]


def check_digest(
    format: str, path: str, file: ReadTokens, starts: IntArray, manifest: Manifest, run: Run
) -> Iterator[Finding]:
    """Compare the digest of all documents, and the largest id, with a side file; runs of 2^24 tokens are tasks."""
    if manifest.digest is None:
        return
    joined = is_joinable(manifest.digest)
    facts = list(run(stated_facts, _stated_tasks(file, path, starts, joined=joined)))
    if not all(facts):  # or a share of the work, which has no result of the others
        return
    digests, largest = [one[0] for one in facts], max((one[1] for one in facts), default=-1)
    if joined:
        found = join_digests(digests)
    else:
        whole = DocumentDigest()
        whole.update_lengths(np.diff(starts))
        for one in digests:
            whole.update_block(bytes.fromhex(one))
        found = whole.hexdigest()
    if found != manifest.digest:
        yield _other_documents(format, path, found, manifest)
    elif manifest.max_token_id is not None and largest != manifest.max_token_id:
        stated = f"{manifest.max_token_id}, as recorded in the side file"
        yield Finding(f"{format}.changed", "error", path, None, f"the largest id {largest}", stated, RESTORE)


def _stated_tasks(file: ReadTokens, path: str, starts: IntArray, *, joined: bool) -> Iterator[StatedTask]:
    num_tokens = int(starts[-1])
    if not joined:
        for start in range(0, num_tokens, RUN_TOKENS):
            yield StatedTask(file, path, start, min(num_tokens, start + RUN_TOKENS), None)
        return
    for start, stop, lengths in runs_of(starts, RUN_TOKENS):
        yield StatedTask(file, path, start, stop, lengths)

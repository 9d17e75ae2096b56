"""Comparison of a token file with its side file: blocks of its bytes, runs of documents, or all documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.abc import TokenSource
from penstock.codec.joined_digest import documents_in
from penstock.formats._manifest import DATA
from penstock.formats._proof import Proof, ProvedRun, file_runs, index_runs, require_none
from penstock.formats._side_checks import RESTORE
from penstock.formats.tokens.checks import digest_like
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.joined import DOCUMENTS
from penstock.store.base import Store
from penstock.types import Finding, Manifest

_RUN_TOKENS = 1 << 22


def token_proof(
    source: TokenSource,
    manifest: Manifest,
    store: Store,
    path: str,
    start_bytes: int,
    num_tokens: int,
    token_bytes: int,
    indexes: Mapping[str, str] | None = None,
    *,
    in_order: bool = True,
) -> Proof:
    """Return the proof of the tokens of one file.

    Args:
        source: the tokens.
        manifest: their side file.
        store: store of the file.
        path: path of the file.
        start_bytes: offset of its tokens.
        num_tokens: number of its tokens.
        token_bytes: width of a token in the file, which may be more than in the source.
        indexes: name in the side file → path of files next to it.
        in_order: tokens are in the order of the source; otherwise the whole file is verified with any of them.
    """
    digests = manifest.block_digests
    runs: list[ProvedRun] = []
    if DATA in digests:
        runs += file_runs(store, path, digests[DATA], start_bytes, num_tokens, token_bytes)
        if not in_order:
            runs = [ProvedRun(0, source.num_tokens, one.require) for one in runs]
    elif DOCUMENTS in digests:
        runs += _document_runs(source, path, digests[DOCUMENTS])
    elif manifest.digest is not None:
        runs.append(all_documents(source, path, manifest.digest))
    for name, one in (indexes or {}).items():
        if name in digests:
            runs += index_runs(store, one, digests[name], source.num_tokens)
    return Proof(runs)


def all_documents(source: TokenSource, path: str, digest: str) -> ProvedRun:
    """All documents of a source, by their digest of either version."""
    return ProvedRun(0, source.num_tokens, _Documents(source, path, 0, len(source), digest))


def _document_runs(source: TokenSource, path: str, digests: tuple[str, ...]) -> Iterator[ProvedRun]:
    starts = source.doc_starts
    borders = [0, *np.cumsum([documents_in(one) for one in digests]).tolist()]
    if borders[-1] != len(starts) - 1:
        found, stated = f"{len(starts) - 1} documents", f"{borders[-1]}, as recorded in the side file"
        require_none([Finding("digest", "error", path, None, found, stated, RESTORE)])
    for (first, stop), digest in zip(pairwise(borders), digests, strict=True):
        run = _Documents(source, path, first, stop, digest)
        yield ProvedRun(int(starts[first]), max(int(starts[first]) + 1, int(starts[stop])), run)


@dataclass(frozen=True, slots=True)
class _Documents:
    """Documents of a source; a call verifies their digest."""

    source: TokenSource
    path: str
    first: int
    stop: int
    digest: str

    def __call__(self) -> None:
        found = digest_like(self.digest, document_runs(self.source, _RUN_TOKENS, self.first, self.stop))
        if found != self.digest:
            what = f"documents {self.first} to {self.stop} have the digest {found}"
            require_none([Finding("digest", "error", self.path, None, what, self.digest, RESTORE)])

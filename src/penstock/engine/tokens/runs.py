"""Digests of runs of a part's documents, by which files are made of parts without a look at their tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.codec.joined_digest import JoinedDigest
from penstock.engine.parts import DocumentRun
from penstock.types import IntArray

_RUN_TOKENS = 1 << 18
"""Of a run of documents with a digest of its own. A border of token files reads what it cuts of one."""


@dataclass(slots=True)
class DocumentRuns:
    """The runs of a part's documents; a long document is one of its own."""

    _done: list[DocumentRun] = field(default_factory=list[DocumentRun])
    _digest: JoinedDigest = field(default_factory=JoinedDigest)
    _tokens: int = 0
    _highest: int = -1

    def add(self, tokens: NDArray[np.unsignedinteger], lengths: IntArray) -> None:
        """Add documents."""
        self._digest.update(tokens, lengths)
        self._tokens += len(tokens)
        self._highest = max(self._highest, int(tokens.max(initial=0)) if len(tokens) else -1)
        if self._tokens >= _RUN_TOKENS:
            self._close()

    def add_long(self, *pieces: NDArray[np.unsignedinteger]) -> None:
        """Add one document, which comes in pieces."""
        self._close()
        self._digest.update_document(pieces)
        self._highest = max(int(piece.max(initial=0)) for piece in pieces)
        self._close()

    def finish(self) -> tuple[DocumentRun, ...]:
        """All of them."""
        self._close()
        return tuple(self._done)

    def _close(self) -> None:
        if self._digest.num_docs:
            self._done.append(DocumentRun(self._digest.num_docs, self._highest, self._digest.text()))
        self._digest, self._tokens, self._highest = JoinedDigest(), 0, -1

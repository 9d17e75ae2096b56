"""Blocks of a fixed length that each begin with a document, as in Modalities' Megatron packing.

A block begins at a document's first token and takes whole documents until one doesn't fit, of which it contains the
beginning. The next block begins with that document again or, if a block starts with a document longer than itself, with
the document after it. The last documents, too short for a block, aren't used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from penstock._access import token_extents
from penstock._arrays import as_index, as_indices
from penstock._digest import borders_key
from penstock._kinds import Derived
from penstock._limits import require_window_length
from penstock._tokens import add_planes, flags_between, planes_of, stored_tokens, without_loss
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.pack.chunk import documents_between
from penstock.pack.labels import first_row, shifted
from penstock.pack.windows import TokenWindows
from penstock.types import Batch, IntArray, Place, Sample

VERSION = "megatron-blocks-1"

_CHUNK_DOCS = 1 << 17


@dataclass(frozen=True, slots=True)
class MegatronBlocks:
    """Packer for blocks that each begin with a document, like Modalities' Megatron packing.

    Call it with a token source. Without labels, samples are `{"tokens": uint[length]}`. With `labels="shift"`, a block
    reads one more token and also contains the columns of `Chunk(labels="shift")`.

    A document that doesn't fit is read twice, and the rest of a document longer than a block isn't read: see
    `repeated_tokens` and `left_out_tokens` of the result.

    Attributes:
        length: tokens per block.
        labels: None or `"shift"`.
        derived: cache for the plan, a mapped file made once per host. Without it, each process makes its own.

    Raises:
        ConfigError: `length` is out of range, or `labels` is unknown.

    Examples:
        >>> import penstock as ps
        >>> blocks = ps.MegatronBlocks(16)(ps.open("corpus.pbin"))
        >>> [int(block["tokens"][0]) for block in blocks]
        [101, 301, 501]
        >>> blocks.repeated_tokens, blocks.left_out_tokens
        (6, 3)
    """

    length: int
    labels: Literal["shift"] | None = None
    derived: Derived | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_window_length(self.length)
        if self.labels not in (None, "shift"):
            raise ConfigError("unknown labels", found=repr(self.labels), expected="'shift' or None")

    def __call__(self, source: TokenSource, /) -> MegatronWindows:
        """Return blocks over the documents of `source`.

        Raises:
            ConfigError: there are fewer tokens than one block needs.
        """
        return MegatronWindows(source, self)


class MegatronWindows(TokenWindows):
    """Source of blocks that begin with a document, as returned by `MegatronBlocks`.

    Memory: 8 bytes per block, from the first use on.

    Examples:
        >>> import penstock as ps
        >>> blocks = ps.MegatronBlocks(16)(ps.open("corpus.pbin"))
        >>> type(blocks).__name__, blocks.starts
        ('MegatronWindows', array([ 0, 11, 26]))
    """

    kind, version = "megatron-blocks", VERSION

    def __init__(self, source: TokenSource, packing: MegatronBlocks) -> None:
        super().__init__(source, packing)
        self.labels = packing.labels
        self._read_tokens = packing.length + (packing.labels == "shift")
        self._starts: IntArray | None = None
        if source.num_tokens < self._read_tokens:
            raise ConfigError(
                "not enough tokens for one block",
                found=f"{source.num_tokens} tokens",
                expected=f"at least {self._read_tokens} for length {packing.length}",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_starts": None}

    def own(self) -> dict[str, Any]:
        return {"length": self.packing.length, "labels": self.packing.labels}

    def shown(self) -> dict[str, Any]:
        return {**self.own(), "blocks": None if self._starts is None else len(self._starts)}

    def windows_with(self, document: int, start: int, stop: int) -> IntArray:
        first = np.searchsorted(self.starts, start - self.packing.length, side="right")
        return np.arange(first, np.searchsorted(self.starts, stop))

    @property
    def starts(self) -> IntArray:
        """First token of each block, int64[n_blocks] ascending; computed at first use."""
        starts = self._starts
        if starts is None:
            derived = self.packing.derived
            key = f"{VERSION}-{self.packing.length}-{self._read_tokens}-{borders_key(self.source)}"
            starts = self._plan() if derived is None else derived.array(key, "int64", self._plan)
            self._starts = starts
        return starts

    @property
    def left_out_tokens(self) -> int:
        """Number of tokens in no block."""
        gaps = np.diff(self.starts, append=self.source.num_tokens) - self.packing.length
        return int(gaps[gaps > 0].sum())

    @property
    def repeated_tokens(self) -> int:
        """Number of tokens read twice, because the next block begins with their document."""
        return len(self) * self.packing.length + self.left_out_tokens - self.source.num_tokens

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int, /) -> Sample:
        start, stop = self._range(index)
        if self.packing.labels is None:
            planes = {name: one.read(start, stop) for name, one in planes_of(self.source).items()}
            return {"tokens": self.source.tokens(start, stop), **planes}
        return first_row(self._columns(np.array([start], dtype=np.int64)))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the blocks at `indices` (int64[k]) as columns, in that order."""
        return self._columns(self.starts[as_indices(indices, len(self))])

    def place_of(self, index: int, /) -> Place:
        """Return the documents and file ranges of a block's tokens."""
        start, stop = self._range(index)
        documents = documents_between(self.source, start, stop)
        return Place(documents=documents, extents=token_extents(self.source, start, stop))

    def _range(self, index: int) -> tuple[int, int]:
        start = int(self.starts[as_index(index, len(self))])
        return start, start + self.packing.length

    def _columns(self, starts: IntArray) -> Batch:
        blocks, length = self.source.gather(starts, self._read_tokens), self.packing.length
        if self.packing.labels is None:
            return add_planes({"tokens": blocks}, self.source, lambda plane, _: plane.gather(starts, length))
        batch = shifted(blocks, flags_between(self.source.doc_starts, starts, self._read_tokens))
        hidden = stored_tokens(self.source)[1]
        mask = None if hidden is None else hidden.mask(starts + 1, length)
        batch = without_loss(batch, mask)
        return add_planes(
            batch, self.source, lambda plane, of_targets: plane.gather(starts + of_targets, length), labels=True
        )

    def _plan(self) -> IntArray:
        starts = block_starts(self.source.doc_starts, self.packing.length, self._read_tokens)
        starts.flags.writeable = False
        return starts


def block_starts(doc_starts: IntArray, length: int, read_tokens: int) -> IntArray:
    """Return int64[n_blocks]: first token of each block.

    One pass over the index in chunks: 8 bytes per block, and a few MB.

    Args:
        doc_starts: int64[n_docs + 1], as of a `TokenSource`.
        length: tokens per block.
        read_tokens: required tokens from a block's start on: `length`, or more.
    """
    # Blocks can only begin at these documents: the last ones are too short.
    n_able = int(np.searchsorted(doc_starts, doc_starts[-1] - read_tokens, side="right"))
    parts: list[IntArray] = []
    doc = 0
    while doc < n_able:
        first, stop = doc, min(doc + _CHUNK_DOCS, n_able)
        starts = doc_starts[first:stop]
        # The document that overflows a block starting here; an empty one before it contains none of its tokens.
        overflow = np.searchsorted(doc_starts, starts + length, side="right") - 1
        after = np.searchsorted(doc_starts, starts, side="right")
        following = np.where(doc_starts[overflow] > starts, overflow, after).tolist()
        opened: list[int] = []
        while doc < stop:
            opened.append(doc - first)
            doc = following[doc - first]
        parts.append(starts[opened])
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

"""Cuts blocks of a fixed length that each begin with a document, as Modalities' Megatron packing does.

A block begins at a document's first token and takes whole documents until one does not fit; of that one it holds the
beginning. The next block begins with that document again, or, where a block starts with a document longer than itself,
with the document after it. The last documents, too short for a block, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from penstock._digest import borders_key, digest
from penstock._hidden import stored_tokens, without_loss
from penstock._index import as_index, as_indices
from penstock._kinds import Derived, require_tokens
from penstock._limits import require_window_length
from penstock._places import token_extents
from penstock._planes import add_planes, plane_fields, planes_of
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, TokenSource
from penstock.errors import ConfigError
from penstock.pack.chunk import documents_between
from penstock.pack.labels import BoolArray, count_without_targets, fields, first_row, require_labels, shifted
from penstock.types import Batch, Field, IntArray, Place, Sample, Schema

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


class MegatronWindows:
    """Source of blocks that begin with a document, as returned by `MegatronBlocks`.

    Memory: 8 bytes per block, from the first use on.

    Examples:
        >>> import penstock as ps
        >>> blocks = ps.MegatronBlocks(16)(ps.open("corpus.pbin"))
        >>> type(blocks).__name__, blocks.starts
        ('MegatronWindows', array([ 0, 11, 26]))
    """

    def __init__(self, source: TokenSource, packing: MegatronBlocks) -> None:
        require_tokens(source, "MegatronBlocks")
        self.source = source
        self._fingerprint: str | None = None
        self.packing = packing
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

    @property
    def schema(self) -> Schema:
        """Fields of the windows: `tokens` and the label columns."""
        dtype, length = str(self.source.dtype), self.packing.length
        if self.packing.labels is None:
            return Schema((Field("tokens", "tokens", dtype, (length,)), *plane_fields(self.source, length)))
        return Schema((*fields(dtype, length, start_zero=False), *plane_fields(self.source, length, labels=True)))

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return getattr(self.source, "preferred_mode", "global")

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint, length and labels."""
        if self._fingerprint is None:
            self._fingerprint = digest(VERSION, self.packing.length, self.packing.labels, self.source.fingerprint)
        return self._fingerprint

    @property
    def starts(self) -> IntArray:
        """First token of each block, int64[n_blocks] ascending; computed at first use."""
        if self._starts is None:
            derived = self.packing.derived
            self._starts = self._plan() if derived is None else derived.array(self._plan_key(), "int64", self._plan)
        return self._starts

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

    def count_without_targets(self) -> int:
        """Return how many windows have no target: none of their tokens is trained on.

        Reads each window once, with bounded memory.

        Raises:
            ConfigError: the windows have no labels.
        """
        require_labels(self.packing.labels)
        return count_without_targets(self, self.packing.length)

    def place_of(self, index: int, /) -> Place:
        """Return the documents and file ranges of a block's tokens."""
        start, stop = self._range(index)
        documents = documents_between(self.source, start, stop)
        return Place(documents=documents, extents=token_extents(self.source, start, stop))

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the token source, under the name `source`."""
        return {"source": self.source}

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the blocks can be rebuilt."""
        return {
            "kind": "megatron-blocks",
            "version": VERSION,
            "length": self.packing.length,
            "labels": self.packing.labels,
            "source": self.source.recipe(),
        }

    def summary(self) -> str:
        """Return one line: length, labels, and the number of blocks once it is known."""
        blocks = None if self._starts is None else len(self._starts)
        params = {"length": self.packing.length, "labels": self.packing.labels, "blocks": blocks}
        return line("MegatronBlocks", params, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

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

    def _plan_key(self) -> str:
        return f"{VERSION}-{self.packing.length}-{self._read_tokens}-{borders_key(self.source)}"


def block_starts(doc_starts: IntArray, length: int, read_tokens: int) -> IntArray:
    """int64[n_blocks]: first token of each block.

    One pass over the index in chunks: 8 bytes a block, and a few MB.

    Args:
        doc_starts: int64[n_docs + 1], as of a `TokenSource`.
        length: tokens of a block.
        read_tokens: tokens that must be there from a block's start on: `length`, or more.
    """
    # Blocks can only begin at these documents: the last ones are too short.
    n_able = int(np.searchsorted(doc_starts, doc_starts[-1] - read_tokens, side="right"))
    parts: list[IntArray] = []
    doc = 0
    while doc < n_able:
        first, stop = doc, min(doc + _CHUNK_DOCS, n_able)
        starts = doc_starts[first:stop]
        # The document that overflows a block that starts here; an empty one before it holds none of its tokens.
        overflow = np.searchsorted(doc_starts, starts + length, side="right") - 1
        after = np.searchsorted(doc_starts, starts, side="right")
        following = np.where(doc_starts[overflow] > starts, overflow, after).tolist()
        opened: list[int] = []
        while doc < stop:
            opened.append(doc - first)
            doc = following[doc - first]
        parts.append(starts[opened])
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def flags_between(doc_starts: IntArray, starts: IntArray, length: int) -> BoolArray:
    """bool[k, length]: whether each token of the windows at `starts` (int64[k]) is the first of a document."""
    low = np.searchsorted(doc_starts, starts, side="left")
    counts = np.searchsorted(doc_starts, starts + length, side="left") - low
    rows = np.repeat(np.arange(len(starts)), counts)
    docs = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(len(rows))
    flags = np.zeros((len(starts), length), dtype=np.bool_)
    flags[rows, doc_starts[docs] - starts[rows]] = True
    return flags

"""Cuts the run of all tokens into windows of a fixed length, across documents.

Window i starts at token `i · stride`, where `stride = length - overlap`; its place follows from i alone, so
nothing is planned or stored. Tokens after the last whole window are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from penstock._digest import digest
from penstock._hidden import stored_tokens, without_loss
from penstock._index import as_index, as_indices
from penstock._places import token_extents
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, SupportsDocumentFlags, TokenSource
from penstock.errors import ConfigError
from penstock.pack.labels import BoolArray, fields, first_row, shifted, start_zero, starts_after
from penstock.types import Batch, Field, IntArray, Place, Sample, Schema, TokenArray

VERSION = "chunk-1"

Labels: TypeAlias = Literal["shift", "start-zero"]
FlagReader: TypeAlias = Callable[[IntArray, int], BoolArray]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A packing: windows of `length` tokens; call it with a token source.

    Without labels a sample is `{"tokens": uint[length]}`. With `labels="shift"` window i reads the tokens
    `[i·length, i·length + length + 1)` and also holds inputs, targets, loss_mask, segment_ids, positions,
    cu_seqlens and max_seqlen. With `labels="start-zero"` targets are the window's own tokens and inputs are the
    tokens before them, 0 where a document or the window begins; it also holds is_seq_start.

    Document starts come from the source where it knows them; else a token after `eos_id` is one.

    Attributes:
        length: tokens of a window.
        overlap: tokens that a window shares with the one before; 1 is Modalities' `reuse_last_target=True`.
        labels: None, `"shift"` or `"start-zero"`.
        eos_id: the id that ends a document; by default the source's own.

    Raises:
        ConfigError: a length below 1, an overlap outside `[0, length)` or together with labels, unknown labels.
    """

    length: int
    overlap: int = 0
    labels: Labels | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("a window holds at least one token", found=f"length {self.length}", expected="1 or more")
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                "overlap must be shorter than the window", found=self.overlap, expected=f"0 to {self.length - 1}"
            )
        if self.labels not in (None, "shift", "start-zero"):
            raise ConfigError("unknown labels", found=repr(self.labels), expected="'shift', 'start-zero' or None")
        if self.labels is not None and self.overlap:
            raise ConfigError(
                "windows with labels don't overlap",
                found=f"overlap {self.overlap}",
                expected="0",
                hint="labels='shift' already reads one token more than a window holds",
            )

    def __call__(self, source: TokenSource, /) -> Windows:
        """Windows over `source`.

        Raises:
            ConfigError: fewer tokens than one window needs, or labels without a way to find document starts.
        """
        return Windows(source, self)


class Windows:
    """The source of windows over the tokens of `source` that `Chunk` returns."""

    def __init__(self, source: TokenSource, packing: Chunk) -> None:
        self.source = source
        self._fingerprint: str | None = None
        self.packing = packing
        self._read_tokens = packing.length + (packing.labels == "shift")
        self._stride = packing.length - packing.overlap
        total = source.num_tokens
        if total < self._read_tokens:
            raise ConfigError(
                "there are fewer tokens than one window needs",
                found=f"{total} tokens",
                expected=f"at least {self._read_tokens} for length {packing.length}",
            )
        self._len = (total - self._read_tokens) // self._stride + 1
        self._eos_id = None if packing.labels is None else _eos_id(source, packing.eos_id)

    @property
    def schema(self) -> Schema:
        """`tokens`, and the label columns."""
        dtype, length = str(self.source.dtype), self.packing.length
        if self.packing.labels is None:
            return Schema((Field("tokens", "tokens", dtype, (length,)),))
        return Schema(fields(dtype, length, start_zero=self.packing.labels == "start-zero"))

    @property
    def preferred_mode(self) -> str:
        """How `Shuffle` orders it by default: as the source."""
        return getattr(self.source, "preferred_mode", "global")

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the way windows are cut and labelled."""
        if self._fingerprint is None:
            p = self.packing
            self._fingerprint = digest(VERSION, p.length, p.overlap, p.labels, self._eos_id, self.source.fingerprint)
        return self._fingerprint

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int, /) -> Sample:
        index = as_index(index, self._len)
        if self.packing.labels is None:
            start = index * self._stride
            return {"tokens": self.source.tokens(start, start + self._read_tokens)}
        return first_row(self.get_batch(np.array([index], dtype=np.int64)))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the windows at `indices`: int64[k], in that order."""
        return self._columns(as_indices(indices, self._len), None)

    def gather_windows(self, indices: Sequence[int] | IntArray, out: TokenArray | None = None) -> Batch:
        """As `get_batch`, reading tokens into `out`: uint[k, window_read_tokens], which the columns then share."""
        return self._columns(as_indices(indices, self._len), out)

    @property
    def window_read_tokens(self) -> int:
        """Tokens read for one window: its length, and one more for `labels="shift"`."""
        return self._read_tokens

    def place_of(self, index: int, /) -> Place:
        """Documents and file ranges of a window's tokens."""
        start, stop = self._range(index)
        return Place(documents=self.documents_of(index), extents=token_extents(self.source, start, stop))

    def documents_of(self, index: int) -> tuple[tuple[int, int, int], ...]:
        """`(document, start, stop)` for each document in the window: the range of its own tokens held there."""
        return documents_between(self.source.doc_starts, *self._range(index))

    def children(self) -> Mapping[str, Source[Any]]:
        """The token source, under the name `source`."""
        return {"source": self.source}

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which the windows can be rebuilt."""
        p = self.packing
        return {
            "kind": "chunk",
            "version": VERSION,
            "length": p.length,
            "overlap": p.overlap,
            "labels": p.labels,
            "eos_id": p.eos_id,
            "source": self.source.recipe(),
        }

    def summary(self) -> str:
        """One line: length, overlap, labels and the number of windows."""
        p = self.packing
        params = {"length": p.length, "overlap": p.overlap, "labels": p.labels, "windows": self._len}
        return line("Chunk", params, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def _range(self, index: int) -> tuple[int, int]:
        start = as_index(index, self._len) * self._stride
        return start, start + self.packing.length

    def _columns(self, indices: IntArray, out: TokenArray | None) -> Batch:
        starts = indices * self._stride
        if self.packing.labels is None:
            return {"tokens": self.source.gather(starts, self._read_tokens, out)}
        exact = None if self.packing.labels == "shift" else starts
        source, hidden = stored_tokens(self.source)  # borders are those of all documents
        if isinstance(source, _FlaggedGather):
            blocks, begins = source.gather_flagged(starts, self._read_tokens, out)
        else:
            blocks = source.gather(starts, self._read_tokens, out)
            begins = self._document_starts(source, starts, blocks, exact)
        mask = None
        if hidden is not None:
            blocks, mask = hidden.cover_windows(blocks, starts), hidden.mask(starts, self._read_tokens)
        if exact is not None:
            return without_loss(start_zero(blocks, begins), mask)
        return without_loss(shifted(blocks, begins), None if mask is None else mask[:, 1:])

    def _document_starts(
        self, source: TokenSource, starts: IntArray, blocks: TokenArray, exact: IntArray | None
    ) -> BoolArray:
        """bool as `blocks`: first tokens of documents; the first column is exact only with `exact`."""
        flags = flag_reader(source)
        if flags is not None:
            return flags(starts, blocks.shape[1])
        eos_id = self._eos_id
        if eos_id is None:
            raise ConfigError(NO_STARTS, hint=NO_STARTS_HINT)
        if exact is None:
            return starts_after(blocks, eos_id)
        before = source.gather(np.maximum(starts - 1, 0), 1)[:, 0]
        return starts_after(blocks, eos_id, (before == eos_id) | (starts == 0))


@runtime_checkable
class _FlaggedGather(Protocol):
    """A token source whose tokens carry their start flags: windows and flags come for one read."""

    def gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, BoolArray]:
        """What `gather(starts, length, out)` and `gather_starts(starts, length)` give."""
        ...


NO_STARTS = "labels need to know where documents start, and this source does not say"
NO_STARTS_HINT = "Pass eos_id=, the id of the token that ends every document"


def flag_reader(source: TokenSource) -> FlagReader | None:
    """The source's own `gather_starts`, or None where it has none."""
    return source.gather_starts if isinstance(source, SupportsDocumentFlags) else None


def documents_between(doc_starts: IntArray, start: int, stop: int) -> tuple[tuple[int, int, int], ...]:
    """`(document, start, stop)` of each document with tokens in `[start, stop)`, counted from its own first token."""
    first = int(np.searchsorted(doc_starts, start, side="right")) - 1
    last = int(np.searchsorted(doc_starts, stop, side="left"))
    begins, ends = doc_starts[first:last].tolist(), doc_starts[first + 1 : last + 1].tolist()
    return tuple(
        (first + i, max(start - begin, 0), min(end, stop) - begin)
        for i, (begin, end) in enumerate(zip(begins, ends, strict=True))
        if begin < end
    )


def _eos_id(source: TokenSource, asked: int | None) -> int | None:
    if flag_reader(source) is not None:
        return None
    eos_id = source.eos_id if asked is None else asked
    if eos_id is None:
        raise ConfigError(NO_STARTS, hint=NO_STARTS_HINT)
    largest = int(np.iinfo(source.dtype).max)
    if not 0 <= eos_id <= largest:
        raise ConfigError("eos_id is no id of these tokens", found=eos_id, expected=f"0 to {largest}")
    return eos_id

"""Packing of whole documents into windows: best-fit decreasing, planned once from lengths.

A document longer than the window is cut into whole windows and a rest, truncated, or dropped; all others stay whole.
Pieces are placed from the longest on, each into the window with the least sufficient space: see
`penstock.pack.placing`. The plan is three arrays: 12 bytes per piece and 8 bytes per window, mapped if the source has a
cache. No token is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, token_extents
from penstock._arrays import as_index, as_indices
from penstock._digest import borders_key, digest
from penstock._kinds import Derived
from penstock._limits import require_window_length
from penstock._tokens import Plane, add_planes, stored_tokens
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.pack.labels import segments
from penstock.pack.placing import RUN_PIECES, New, in_memory, kept, new_of, place
from penstock.pack.windows import TokenWindows
from penstock.types import Batch, IntArray, Place

VERSION = "best-fit-1"

Long: TypeAlias = Literal["keep", "truncate", "drop"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Pieces of documents in each window.

    Attributes:
        window_starts: int64[n_windows + 1]: first piece of each window.
        piece_starts: int64[n_pieces]: first token of each piece, in the source.
        piece_lengths: int32[n_pieces]: its tokens.
    """

    window_starts: IntArray
    piece_starts: IntArray
    piece_lengths: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BestFit:
    """Packer that fills windows with whole documents (best-fit decreasing); call it with a token source.

    Samples contain `tokens`, `inputs`, `targets`, `loss_mask`, `segment_ids`, `positions`, `cu_seqlens` and
    `max_seqlen`. The target of a token is the next token of the same document; a document's last token has no target.
    Padding is recognized by its place in the window, not by its id.

    Attributes:
        length: tokens per window, 1 to 268,435,456.
        pad_id: id that fills the rest of a window.
        derived: cache for the packing plan, keyed by fingerprint. By default the source's cache, else memory.
        long: what to do with documents longer than a window. `"keep"` cuts them into pieces, so pieces may begin
            mid-document; `"truncate"` keeps the first `length` tokens, with `length` targets, like `Whole`; `"drop"`
            skips them.

    Raises:
        ConfigError: `length` or `pad_id` is out of range, or `long` is unknown.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.BestFit(16)(ps.open("corpus.pbin"))
        >>> len(windows), windows.fill
        (3, 0.9375)
        >>> windows[0]["tokens"][:12]
        array([601, 602, 603, 604, 605, 606, 607, 608, 609,   0, 201, 202], dtype=uint16)
    """

    length: int
    pad_id: int = 0
    derived: Derived | None = field(default=None, compare=False)
    long: Long = "keep"

    def __post_init__(self) -> None:
        require_window_length(self.length)
        if self.pad_id < 0:
            raise ConfigError("pad_id is not a token id", found=self.pad_id, expected="0 or more")
        if self.long not in ("keep", "truncate", "drop"):
            raise ConfigError("unknown long", found=repr(self.long), expected="'keep', 'truncate' or 'drop'")

    def __call__(self, source: TokenSource, /) -> PackedWindows:
        """Return windows over the documents of `source`.

        Raises:
            ConfigError: `pad_id` doesn't fit the source's token width, or the source has no tokens.
        """
        return PackedWindows(source, self)


def plan_windows(doc_starts: IntArray, length: int, new: New = in_memory, long: Long = "keep") -> Plan:
    """Return the plan for documents at `doc_starts` (int64[n_docs + 1]) and windows of `length` tokens.

    Memory: that of `penstock.pack.placing`, and of `new`: 32 bytes per piece and 12 bytes per window during planning.
    """
    placed = place(lambda: _pieces_in_runs(doc_starts, length, long), length, new)
    return Plan(placed.starts, placed.values, placed.lengths)


def _pieces_in_runs(doc_starts: IntArray, length: int, long: Long) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the first token and the length of every piece, in the order of the data."""
    for first in range(0, len(doc_starts) - 1, RUN_PIECES):
        borders = np.asarray(doc_starts[first : first + RUN_PIECES + 1], np.int64)
        if long != "keep":
            yield _whole_pieces(borders, length, long)
        elif borders[-1] - borders[0] <= RUN_PIECES * length:
            yield _pieces(borders, length)
        else:  # few documents may have many pieces
            yield from _cut_pieces(borders, length)


def _whole_pieces(doc_starts: IntArray, length: int, long: Long) -> tuple[IntArray, IntArray]:
    """Return the first token and the length of one piece per document; longer ones are truncated or dropped."""
    starts, lengths = doc_starts[:-1], np.diff(doc_starts)
    chosen = lengths > 0 if long == "truncate" else (lengths > 0) & (lengths <= length)
    return starts[chosen], np.minimum(lengths[chosen], length)


def _cut_pieces(borders: IntArray, length: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the same for documents that together have more tokens than a run of windows."""
    counts = np.cumsum(-(-np.diff(borders) // length))
    start = 0
    while start < len(counts):
        done = int(counts[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(counts, done + RUN_PIECES, side="right")))
        begin, end = int(borders[start]), int(borders[stop])
        if stop > start + 1:
            yield _pieces(borders[start : stop + 1], length)
        else:
            for at in range(begin, end, RUN_PIECES * length):
                yield _pieces(np.array([at, min(end, at + RUN_PIECES * length)]), length)
        start = stop


def _pieces(doc_starts: IntArray, length: int) -> tuple[IntArray, IntArray]:
    """Return the first token and the length of every piece of some documents."""
    starts, lengths = doc_starts[:-1], np.diff(doc_starts)
    filled = lengths > 0
    if not filled.all():
        starts, lengths = starts[filled], lengths[filled]
    if not len(lengths) or int(lengths.max()) <= length:
        return starts, lengths
    counts = -(-lengths // length)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    cut_starts = np.repeat(starts, counts) + number * length
    return cut_starts, np.minimum(np.repeat(starts + lengths, counts) - cut_starts, length)


class PackedWindows(TokenWindows):
    """Source of windows of whole documents, as returned by `BestFit`.

    The plan is made or loaded at first use.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.BestFit(16)(ps.open("corpus.pbin"))
        >>> type(windows).__name__, windows.get_batch([0, 1])["segment_ids"].shape
        ('PackedWindows', (2, 16))
    """

    kind, version = "best-fit", VERSION

    def __init__(self, source: TokenSource, packing: BestFit) -> None:
        super().__init__(source, packing)
        self.require_pad_id(packing.pad_id)
        if source.num_tokens == 0:
            raise ConfigError("there are no tokens to fill a window")
        self._plan: Plan | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (PackedWindows, (self.source, self.packing))

    @property
    def plan(self) -> Plan:
        """Pieces of documents in each window."""
        if self._plan is None:
            self._plan = self._find_plan()
        return self._plan

    @property
    def _long(self) -> dict[str, str]:
        return {} if self.packing.long == "keep" else {"long": self.packing.long}

    def own(self) -> dict[str, Any]:
        return {"length": self.packing.length, "pad_id": self.packing.pad_id, **self._long}

    def windows_with(self, document: int, start: int, stop: int) -> IntArray:
        pieces = np.flatnonzero((self.plan.piece_starts >= start) & (self.plan.piece_starts < stop))
        return np.searchsorted(self.plan.window_starts, pieces, side="right") - 1

    @property
    def fill(self) -> float:
        """Fraction of the windows' places that contain a token, 0 to 1."""
        held = (
            self.source.num_tokens if self.packing.long == "keep" else int(self.plan.piece_lengths.sum(dtype=np.int64))
        )
        return held / (len(self) * self.packing.length)

    def __len__(self) -> int:
        return len(self.plan.window_starts) - 1

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        indices = as_indices(indices, len(self))
        shape = (len(indices), self.packing.length)
        row, column, starts, lengths, more = self._pieces_of(indices)
        tokens = np.full(shape, self.packing.pad_id, self.source.dtype)
        targets = np.full(shape, self.packing.pad_id, self.source.dtype)
        pieces = zip(row.tolist(), column.tolist(), starts.tolist(), lengths.tolist(), more.tolist(), strict=True)
        for r, c, start, length, goes_on in pieces:
            run = self.source.tokens(start, start + length + goes_on)
            tokens[r, c : c + length] = run[:length]
            targets[r, c : c + len(run) - 1] = run[1:]
        used = np.bincount(row, lengths, minlength=len(indices)).astype(np.int64)
        begins = np.zeros(shape, np.bool_)
        begins[row, column] = True
        loss_mask = np.arange(shape[1]) < used[:, None]
        last = ~more
        loss_mask[row[last], column[last] + lengths[last] - 1] = False
        hidden = stored_tokens(self.source)[1]
        for piece in () if hidden is None else np.flatnonzero(hidden.has(starts)).tolist():
            loss_mask[row[piece], column[piece] : column[piece] + lengths[piece]] = False
        labels = {"inputs": tokens, "targets": targets, "loss_mask": loss_mask}

        def take(plane: Plane, of_targets: bool) -> NDArray[Any]:
            values = np.zeros(shape, plane.dtype)
            counts = lengths + more - 1 if of_targets else lengths
            firsts = zip(row.tolist(), column.tolist(), (starts + of_targets).tolist(), counts.tolist(), strict=True)
            for r, c, start, count in firsts:
                values[r, c : c + count] = plane.read(start, start + count)
            return values

        return add_planes({"tokens": tokens, **labels, **segments(begins, used)}, self.source, take, labels=True)

    def place_of(self, index: int, /) -> Place:
        """Return the documents and file ranges of a window's tokens."""
        index = as_index(index, len(self))
        _, _, starts, lengths, _ = self._pieces_of(np.array([index]))
        ranges = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
        found = [token_extents(self.source, start, stop) for start, stop in ranges]
        extents = (
            None if any(one is None for one in found) else tuple(e for one in found if one is not None for e in one)
        )
        doc_starts = self.source.doc_starts
        documents: list[tuple[int, int, int]] = []
        for start, stop in ranges:
            document = int(np.searchsorted(doc_starts, start, side="right")) - 1
            begin = int(doc_starts[document])
            documents.append((document, start - begin, stop - begin))
        return Place(documents=tuple(documents), extents=extents)

    def _find_plan(self) -> Plan:
        plan = self._made_plan()
        if len(plan.window_starts) < 2:
            raise ConfigError(
                "every document is longer than a window, and long='drop' skips them",
                expected=f"a document with at most {self.packing.length} tokens",
            )
        return plan

    def _made_plan(self) -> Plan:
        derived: Derived | None = self.packing.derived or capability(self.source, "derived")
        if derived is None:
            return plan_windows(self.source.doc_starts, self.packing.length, long=self.packing.long)
        known = borders_key(self.source)
        key = f"{VERSION}-{digest(self.packing.length, *self._long.values(), known)}"
        names = [(f"{key}-window_starts", "int64"), (f"{key}-piece_starts", "int64"), (f"{key}-piece_lengths", "int32")]

        def make() -> tuple[NDArray[Any], ...]:
            plan = plan_windows(self.source.doc_starts, self.packing.length, new_of(derived), self.packing.long)
            return plan.window_starts, plan.piece_starts, plan.piece_lengths

        return Plan(*kept(derived, names, make))

    def _pieces_of(self, indices: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray, NDArray[np.bool_]]:
        """Return row, column, first token and length of each piece, and whether its document continues after it."""
        plan = self.plan
        first = np.asarray(plan.window_starts[indices])
        counts = np.asarray(plan.window_starts[indices + 1]) - first
        row = np.repeat(np.arange(len(indices)), counts)
        before = np.cumsum(counts) - counts
        piece = np.arange(len(row)) + (first - before)[row]
        starts, lengths = np.asarray(plan.piece_starts[piece]), np.asarray(plan.piece_lengths[piece], np.int64)
        placed = np.cumsum(lengths) - lengths
        column = placed - placed[before][row] if len(row) else placed
        doc_starts = self.source.doc_starts
        ends = np.asarray(doc_starts[np.searchsorted(doc_starts, starts, side="right")])
        return row, column, starts, lengths, starts + lengths < ends

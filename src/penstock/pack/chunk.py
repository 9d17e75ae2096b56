"""Windows of a fixed length, cut from all tokens across documents.

Window i starts at token `i · stride`, where `stride = length - overlap`. It follows from i, so nothing is planned or
stored. Tokens after the last whole window aren't used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, token_extents
from penstock._arrays import Recycled, as_index, as_indices
from penstock._kinds import FormerRule, RuleChange
from penstock._limits import require_window_length
from penstock._tokens import (
    Hidden,
    Plane,
    add_planes,
    borders_around,
    document_flags,
    ends_at,
    had_eos_borders,
    has_input_planes,
    of_inputs,
    planes_of,
    stored_tokens,
    without_loss,
)
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.pack.labels import (
    SHIFT,
    START_ZERO,
    BoolArray,
    needs_starts,
    require_labels,
    shifted,
    start_zero,
    starts_after,
)
from penstock.pack.windows import Labels, TokenWindows
from penstock.types import Batch, IntArray, Place, Sample, Schema, TokenArray

VERSION = "chunk-1"

FlaggedGather: TypeAlias = Callable[[IntArray, int, TokenArray | None], tuple[TokenArray, BoolArray]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Packer that cuts windows from consecutive tokens; call it with a token source.

    The columns depend on `labels`:

    - None: `{"tokens": uint[length]}`.
    - `"shift"`: window i reads the tokens `[i * length, i * length + length + 1)` and also contains `inputs`,
      `targets`, `loss_mask`, `segment_ids`, `positions`, `cu_seqlens` and `max_seqlen`.
    - `"start-zero"`: `targets` are the window's own tokens and `inputs` the tokens before them, with 0 at the start of
      each document and of the window. It also contains `is_seq_start`.

    Document boundaries come from the source's index. With `eos_id` they come from the tokens instead: the token after
    that id starts a document, even if the index differs. Sources without an index use the EOS id they were opened with.

    With `fields`, only those columns are made, at the cost of only those columns. `tokens`, `inputs` and `targets` of
    `labels="shift"` are views of one array and need no document boundaries; copy them before writing to them.

    Attributes:
        length: tokens per window.
        overlap: tokens that a window shares with the previous one. 1 is Modalities' `reuse_last_target=True`.
        labels: None, `"shift"` or `"start-zero"`.
        eos_id: cut documents at this id instead of at the source's document boundaries.
        fields: names of the columns to make, in this order. By default all columns of `labels`.

    Raises:
        ConfigError: `length` is below 1, `overlap` is outside `[0, length)` or combined with labels, or labels or
            fields are unknown.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Chunk(16, labels="shift")(ps.open("corpus.pbin"))
        >>> len(windows)
        2
        >>> windows[0]["inputs"][:6]
        array([101, 102, 103, 104,   0, 201], dtype=uint16)
        >>> windows[0]["targets"][:6]
        array([102, 103, 104,   0, 201, 202], dtype=uint16)
    """

    length: int
    overlap: int = 0
    labels: Labels | None = None
    eos_id: int | None = None
    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_window_length(self.length)
        if not 0 <= self.overlap < self.length:
            raise ConfigError(
                "overlap must be shorter than the window", found=self.overlap, expected=f"0 to {self.length - 1}"
            )
        if self.labels not in (None, "shift", "start-zero"):
            raise ConfigError("unknown labels", found=repr(self.labels), expected="'shift', 'start-zero' or None")
        if self.labels is not None and self.overlap:
            raise ConfigError(
                "windows with labels can't overlap",
                found=f"overlap {self.overlap}",
                expected="0",
                hint="labels='shift' already reads one token more than the window",
            )
        if self.fields is not None:
            object.__setattr__(self, "fields", _checked_fields(self.fields, self.labels))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a batch's columns, in order."""
        if self.labels is None:
            return ("tokens",)
        return self.fields or (SHIFT if self.labels == "shift" else START_ZERO)

    def __call__(self, source: TokenSource, /) -> Windows:
        """Return windows over `source`.

        Raises:
            ConfigError: there are fewer tokens than one window needs, or labels but no way to find document boundaries.
        """
        return Windows(source, self)


class Windows(TokenWindows):
    """Source of windows of consecutive tokens, as returned by `Chunk`.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Chunk(16, labels="shift")(ps.open("corpus.pbin"))
        >>> type(windows).__name__, len(windows)
        ('Windows', 2)
        >>> windows.documents_of(0)
        ((0, 0, 5), (1, 0, 6), (2, 0, 5))
    """

    kind, version = "chunk", VERSION

    def __init__(self, source: TokenSource, packing: Chunk) -> None:
        super().__init__(source, packing)
        self.labels = packing.labels
        self._new = Recycled()
        self._read_tokens = packing.length + (packing.labels == "shift")
        self._stride = packing.length - packing.overlap
        total = source.num_tokens
        if total < self._read_tokens:
            raise ConfigError(
                "not enough tokens for one window",
                found=f"{total} tokens",
                expected=f"at least {self._read_tokens} for length {packing.length}",
            )
        self._len = (total - self._read_tokens) // self._stride + 1
        needs = packing.labels == "start-zero" and has_input_planes(source)
        self._needs_starts = packing.labels is not None and (needs or needs_starts(packing.names, packing.labels))
        self._eos_id = _checked_eos(source, packing.eos_id) if self._needs_starts else None
        # Looked up once: a failed attribute lookup takes as long as reading a window.
        self._is_plain = packing.labels is None and not planes_of(source)

    @property
    def schema(self) -> Schema:
        return self.schema_of(self.packing.labels, self.packing.names)

    def identity(self) -> tuple[Any, ...]:
        p = self.packing
        names = () if p.fields is None else (sorted(p.fields),)
        params = (p.length, p.overlap, p.labels, self._eos_id, *names, *self._borders.values())
        return (VERSION, *params, self.source.fingerprint)

    def windows_with(self, document: int, start: int, stop: int) -> IntArray:
        first = max(0, (start - self.packing.length) // self._stride + 1)
        return np.arange(first, min(self._len, -(-stop // self._stride)))

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int, /) -> Sample:
        if self.packing.labels is not None:
            return super().__getitem__(index)
        start = as_index(index, self._len) * self._stride
        sample = {"tokens": self.source.tokens(start, start + self._read_tokens)}
        if self._is_plain:
            return sample
        planes = planes_of(self.source).items()
        return {**sample, **{name: one.read(start, start + self._read_tokens) for name, one in planes}}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        return self._columns(as_indices(indices, self._len), None)

    def gather_windows(self, indices: Sequence[int] | IntArray, out: TokenArray | None = None) -> Batch:
        """Return `get_batch` with tokens read into `out`, uint[k, window_read_tokens], which the columns share."""
        return self._columns(as_indices(indices, self._len), out)

    @property
    def window_read_tokens(self) -> int:
        """Tokens read per window: `length`, and one more for `labels="shift"`."""
        return self._read_tokens

    def count_without_targets(self) -> int:
        require_labels(self.labels)
        return TokenWindows.count_without_targets(Windows(self.source, replace(self.packing, fields=("loss_mask",))))

    def place_of(self, index: int, /) -> Place:
        """Return the documents and file ranges of a window's tokens."""
        start, stop = self._range(index)
        try:
            documents = self.documents_of(index)
        except ConfigError:  # raw tokens without borders: their ranges are still known
            documents = None
        return Place(documents=documents, extents=token_extents(self.source, start, stop))

    def documents_of(self, index: int) -> tuple[tuple[int, int, int], ...]:
        """Return `(document, start, stop)` per document: the range of its own tokens in the window."""
        return documents_between(self.source, *self._range(index))

    def former_rule(self) -> FormerRule | None:
        """Return the rule that earlier versions used; see `penstock._kinds.HasFormerRule`."""
        if not self._needs_starts:
            return None
        was_by_eos = had_eos_borders(self.source)
        if self._eos_id is None and was_by_eos:
            eos_id = self.source.eos_id
            keep = f"To keep the former rule: Chunk(eos_id={eos_id})"
            return FormerRule({}, ("borders",), self._change("each EOS id", "the index", keep, eos_id))
        if self._eos_id is not None and not was_by_eos:
            keep = "To keep the former rule, omit eos_id= of Chunk and accept 'recipe'"
            change = self._change("the index", f"each id {self._eos_id}", keep, self._eos_id)
            return FormerRule({}, ("borders",), change)
        if self._eos_id is not None and self._eos_id == self.source.eos_id:
            return FormerRule({"eos_id": None}, (), None)
        return None

    def _change(self, old: str, new: str, keep: str, eos_id: int | None) -> RuleChange:
        source = stored_tokens(self.source)[0]
        text = f"labels take document borders from {new}; version 0.2.0 took them from {old}"
        return RuleChange(
            "document-borders", text, old, new, keep, lambda: eos_id is not None and not ends_at(source, eos_id)
        )

    @property
    def _borders(self) -> dict[str, str]:
        """Parts of recipes and fingerprints for document borders that version 0.2.0 found by another rule."""
        if not self._needs_starts or had_eos_borders(self.source) == (self._eos_id is not None):
            return {}
        return {"borders": "index" if self._eos_id is None else "eos"}

    def own(self) -> dict[str, Any]:
        p = self.packing
        params = {"length": p.length, "overlap": p.overlap, "labels": p.labels, "eos_id": p.eos_id}
        return {**params, **({} if p.fields is None else {"fields": list(p.fields)}), **self._borders}

    def shown(self) -> dict[str, Any]:
        p = self.packing
        params = {"length": p.length, "overlap": p.overlap, "labels": p.labels, "windows": self._len}
        return params | ({} if p.fields is None else {"fields": ", ".join(p.fields)})

    @cached_property
    def _stored(self) -> tuple[TokenSource, Hidden | None, FlaggedGather | None]:
        """Stored tokens, hidden tokens, and a reader of tokens with start flags, looked up once."""
        source, hidden = stored_tokens(self.source)
        by_index = self._needs_starts and self._eos_id is None
        return source, hidden, capability(source, "gather_flagged") if by_index else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_stored"}

    def _range(self, index: int) -> tuple[int, int]:
        start = as_index(index, self._len) * self._stride
        return start, start + self.packing.length

    def _columns(self, indices: IntArray, out: TokenArray | None) -> Batch:
        starts = indices * self._stride
        if self.packing.labels is None:
            batch = {"tokens": self.source.gather(starts, self._read_tokens, out)}
            if self._is_plain:
                return batch
            return add_planes(batch, self.source, lambda plane, _: plane.gather(starts, self._read_tokens))
        exact = None if self.packing.labels == "shift" else starts
        source, hidden, flagged = self._stored
        begins: BoolArray | None = None
        if flagged is not None:
            blocks, begins = flagged(starts, self._read_tokens, out)
        else:
            blocks = source.gather(starts, self._read_tokens, out)
            if self._needs_starts:
                begins = self._document_starts(source, starts, blocks, exact)
        mask = None
        names = self.packing.names
        if hidden is not None:
            blocks = hidden.cover_windows(blocks, starts)
            mask = hidden.mask(starts, self._read_tokens) if "loss_mask" in names else None
        if exact is not None:
            batch = without_loss(start_zero(blocks, begins, names, self._new), mask)

            def take(plane: Plane, of_targets: bool) -> NDArray[Any]:
                values = plane.gather(starts, self.packing.length)
                return values if of_targets or begins is None else of_inputs(values, begins)

            return add_planes(batch, self.source, take, labels=True)
        batch = without_loss(shifted(blocks, begins, names, self._new), None if mask is None else mask[:, 1:])
        length = self.packing.length
        return add_planes(
            batch, self.source, lambda plane, of_targets: plane.gather(starts + of_targets, length), labels=True
        )

    def _document_starts(
        self, source: TokenSource, starts: IntArray, blocks: TokenArray, exact: IntArray | None
    ) -> BoolArray:
        """Return bool as `blocks`: first tokens of documents; the first column is exact only with `exact`."""
        eos_id = self._eos_id
        if eos_id is None:
            return document_flags(source, starts, blocks.shape[1])
        if exact is None:
            return starts_after(blocks, eos_id)
        before = source.gather(np.maximum(starts - 1, 0), 1)[:, 0]
        return starts_after(blocks, eos_id, (before == eos_id) | (starts == 0))


def documents_between(source: TokenSource, start: int, stop: int) -> tuple[tuple[int, int, int], ...]:
    """Return `(document, start, stop)` of each document in `[start, stop)`, counted from its own first token."""
    before, borders = borders_around(source, start, stop)
    first = int(np.searchsorted(borders, start, side="right")) - 1
    last = int(np.searchsorted(borders, stop, side="left"))
    begins, ends = borders[first:last].tolist(), borders[first + 1 : last + 1].tolist()
    return tuple(
        (before + first + i, max(start - begin, 0), min(end, stop) - begin)
        for i, (begin, end) in enumerate(zip(begins, ends, strict=True))
        if begin < end
    )


def _checked_eos(source: TokenSource, eos_id: int | None) -> int | None:
    largest = int(np.iinfo(source.dtype).max)
    if eos_id is not None and not 0 <= eos_id <= largest:
        raise ConfigError("eos_id is not a token id of this dataset", found=eos_id, expected=f"0 to {largest}")
    return eos_id


def _checked_fields(asked: Sequence[str], labels: Labels | None) -> tuple[str, ...]:
    """Return the names as a tuple; raise `ConfigError` for names that the labels don't have."""
    if labels is None:
        hint = "Also pass labels=. Without labels a window only has tokens"
        raise ConfigError("fields= selects columns of labels", found="no labels", hint=hint)
    known = SHIFT if labels == "shift" else START_ZERO
    if isinstance(asked, str) or not asked or not set(asked) <= set(known) or len(set(asked)) < len(asked):
        expected = f"some of {', '.join(known)}, each once"
        raise ConfigError(f"labels={labels!r} don't have these fields", found=repr(asked), expected=expected)
    return tuple(asked)

"""One window per document: cut, or padded at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._access import token_extents
from penstock._arrays import as_index, as_indices
from penstock._limits import require_window_length
from penstock._tokens import Plane, add_planes, stored_tokens
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.pack.labels import segments
from penstock.pack.windows import Labels, TokenWindows
from penstock.types import Batch, IntArray, Place

VERSION = "whole-1"


@dataclass(frozen=True, slots=True)
class Whole:
    """Packer that makes one window per document; call it with a token source.

    A window contains the first `length` tokens of its document, then `pad_id`. With `labels="shift"`, targets are the
    next tokens, so a document longer than the window gives `length` targets. With `labels="start-zero"`, each token of
    the window is a target and inputs are the tokens before it, starting with 0; padding is always 0. Padding is
    recognized by its place in the window: a token that equals `pad_id` is an ordinary token.

    Attributes:
        length: tokens per window.
        pad_id: id that fills the window after a shorter document.
        labels: `"shift"` or `"start-zero"`.

    Raises:
        ConfigError: `length` is below 1, `pad_id` is negative or combined with `labels="start-zero"`, or `labels` is
            unknown.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Whole(8)(ps.open("corpus.pbin"))
        >>> windows[0]["tokens"]
        array([101, 102, 103, 104,   0,   0,   0,   0], dtype=uint16)
        >>> windows[0]["loss_mask"]
        array([ True,  True,  True,  True, False, False, False, False])
    """

    length: int
    pad_id: int = 0
    labels: Labels = "shift"

    def __post_init__(self) -> None:
        require_window_length(self.length)
        if self.pad_id < 0:
            raise ConfigError("pad_id is not a token id", found=self.pad_id, expected="0 or more")
        if self.labels not in ("shift", "start-zero"):
            raise ConfigError("unknown labels", found=repr(self.labels), expected="'shift' or 'start-zero'")
        if self.labels == "start-zero" and self.pad_id:
            raise ConfigError("windows of labels='start-zero' are padded with 0", found=f"pad_id {self.pad_id}")

    def __call__(self, source: TokenSource, /) -> WholeDocuments:
        """Return one window per document of `source`.

        Raises:
            ConfigError: `pad_id` doesn't fit the source's token width.
        """
        return WholeDocuments(source, self)


class WholeDocuments(TokenWindows):
    """Source of one window per document, also for empty documents, as returned by `Whole`.

    Examples:
        >>> import penstock as ps
        >>> windows = ps.Whole(8)(ps.open("corpus.pbin"))
        >>> type(windows).__name__, windows.documents_of(4)
        ('WholeDocuments', ((4, 0, 8),))
    """

    kind, version = "whole", VERSION

    def __init__(self, source: TokenSource, packing: Whole) -> None:
        super().__init__(source, packing)
        self.require_pad_id(packing.pad_id)

    def own(self) -> dict[str, Any]:
        labels = {} if self.packing.labels == "shift" else {"labels": self.packing.labels}
        return {"length": self.packing.length, "pad_id": self.packing.pad_id, **labels}

    def windows_with(self, document: int, start: int, stop: int) -> IntArray:
        return np.array([document])

    def __len__(self) -> int:
        return len(self.source)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        indices = as_indices(indices, len(self))
        length, shift = self.packing.length, int(self.packing.labels == "shift")
        doc_starts = self.source.doc_starts
        starts = doc_starts[indices]
        read = np.minimum(doc_starts[indices + 1] - starts, length + shift)
        blocks = np.full((len(starts), length + shift), self.packing.pad_id, dtype=self.source.dtype)
        blocks = self._gather(self.source.gather, self.source.tokens, blocks, starts, read)
        columns = np.arange(length)
        no_starts = np.zeros((len(indices), length), dtype=np.bool_)
        hidden = stored_tokens(self.source)[1]
        read_on = read if hidden is None else np.where(hidden.has(starts), 0, read)
        tokens = blocks[:, :length]
        inputs = tokens if shift else self._moved(tokens, read)
        batch = {
            "tokens": tokens,
            "inputs": inputs,
            "targets": blocks[:, shift:],
            "loss_mask": columns < read_on[:, None] - shift,
            **segments(no_starts, np.minimum(read, length)),
        }

        def take(plane: Plane, of_targets: bool) -> NDArray[Any]:
            values = self._gather(plane.gather, plane.read, np.zeros(blocks.shape, plane.dtype), starts, read)
            if shift:
                return values[:, 1:] if of_targets else values[:, :-1]
            return values if of_targets else self._moved(values, read)

        return add_planes(batch, self.source, take, labels=True)

    def place_of(self, index: int, /) -> Place:
        """Return the document and the file ranges of the window's tokens."""
        documents = self.documents_of(index)
        if not documents:
            return Place(documents=documents)
        [(document, _, stop)] = documents
        begin = int(self.source.doc_starts[document])
        return Place(documents=documents, extents=token_extents(self.source, begin, begin + stop))

    def documents_of(self, index: int) -> tuple[tuple[int, int, int], ...]:
        """Return `(document, start, stop)`: the document's own tokens in the window; empty if there are none."""
        index = as_index(index, len(self))
        start, stop = self.source.doc_starts[index : index + 2].tolist()
        return ((index, 0, min(stop - start, self.packing.length)),) if start < stop else ()

    @staticmethod
    def _moved(values: NDArray[Any], read: IntArray) -> NDArray[Any]:
        """Return [k, length]: values of the previous token, 0 first and in the padding after `read`: int64[k]."""
        columns = np.arange(values.shape[1])
        return np.where((columns > 0) & (columns < read[:, None]), np.roll(values, 1, axis=1), values.dtype.type(0))

    def _gather(
        self,
        gather: Callable[[IntArray, int], NDArray[Any]],
        run: Callable[[int, int], NDArray[Any]],
        blocks: NDArray[Any],
        starts: IntArray,
        read: IntArray,
    ) -> NDArray[Any]:
        """Return `blocks` filled with `read` values from each of `starts`; the rest keeps its constant value."""
        width = blocks.shape[1]
        fits = starts + width <= self.source.num_tokens
        rows = np.flatnonzero(fits)
        if rows.size:
            whole = gather(starts[rows], width)
            blocks[rows] = np.where(np.arange(width) < read[rows, None], whole, blocks[rows])
        for row in np.flatnonzero(~fits).tolist():  # only documents in the last `width` tokens of the source
            start, count = int(starts[row]), int(read[row])
            blocks[row, :count] = run(start, start + count)
        return blocks

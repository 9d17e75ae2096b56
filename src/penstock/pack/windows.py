"""Base of sources of windows that are cut from the tokens of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from penstock._arrays import as_index
from penstock._kinds import require_tokens
from penstock._tokens import plane_fields
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.node.blocks import preferred_mode
from penstock.node.over import Finder, SourceOver
from penstock.pack.labels import count_without_targets, fields, first_row, require_labels
from penstock.types import Batch, Field, IntArray, Sample, Schema

Labels = Literal["shift", "start-zero"]


class TokenWindows(SourceOver[Sample]):
    """Windows of a token source.

    Raises:
        ConfigError: `source` isn't a token source, or the packer's `pad_id` doesn't fit its ids.
    """

    source: TokenSource
    labels: Labels | None = "shift"

    def __init__(self, source: TokenSource, packing: Any) -> None:
        require_tokens(source, type(packing).__name__)
        super().__init__(source)
        self.packing = packing
        self.title = type(packing).__name__

    def require_pad_id(self, pad_id: int) -> None:
        """Raise `ConfigError` if `pad_id` isn't an id of the source's dtype."""
        largest = int(np.iinfo(self.source.dtype).max)
        if pad_id > largest:
            raise ConfigError("pad_id is out of range for the tokens", found=pad_id, expected=f"0 to {largest}")

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return preferred_mode(self.source)

    @property
    def schema(self) -> Schema:
        """Fields of the windows: `tokens` and the label columns."""
        return self.schema_of(None if self.labels is None else "shift")

    def schema_of(self, labels: Labels | None, names: Sequence[str] | None = None) -> Schema:
        """Return the fields of windows with these labels, or those of them with these names."""
        dtype, length = str(self.source.dtype), self.packing.length
        if labels is None:
            return Schema((Field("tokens", "tokens", dtype, (length,)), *plane_fields(self.source, length)))
        found = {one.name: one for one in fields(dtype, length, start_zero=labels == "start-zero")}
        chosen = (found[name] for name in (found if names is None else names))
        return Schema((*chosen, *plane_fields(self.source, length, labels=True)))

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the windows at `indices` (int64[k]) as columns, in that order."""
        raise TypeError(type(self).__name__)

    def __getitem__(self, index: int, /) -> Sample:
        return first_row(self.get_batch(np.array([as_index(index, len(self))], dtype=np.int64)))

    def count_without_targets(self) -> int:
        """Count the windows without a target: none of their tokens is trained on.

        Reads each window once, with bounded memory.

        Raises:
            ConfigError: the windows have no labels.
        """
        require_labels(self.labels)
        return count_without_targets(self, self.packing.length)

    def windows_with(self, document: int, start: int, stop: int) -> IntArray:
        """Return the windows with tokens of a document, int64[k]; its tokens are `[start, stop)` of the source."""
        raise TypeError(type(self).__name__)

    def find(self, finder: Finder) -> IntArray:
        """Return the windows with tokens of a document, int64[k] ascending."""
        found = [np.empty(0, np.int64)]
        for document in finder.documents(self.source):
            starts = self.source.doc_starts
            if document < len(starts) - 1 and starts[document] < starts[document + 1]:
                found.append(self.windows_with(document, int(starts[document]), int(starts[document + 1])))
        return np.unique(np.concatenate(found))

"""Adds subflavors to samples, by which a function over several datasets knows where a sample comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock._columns import stack
from penstock._digest import digest
from penstock._index import as_index, as_indices
from penstock._resolved import samples_of
from penstock._tree import brief, html, line, tree
from penstock.abc import Source
from penstock.order.wrapped import WrappedSource
from penstock.types import Batch, IntArray, Sample, Schema

FIELD = "__subflavors__"


class Flavored(WrappedSource):
    """A source whose samples carry `subflavors` besides their own; where both name a key, these win.

    Attributes:
        source: what is read.
        subflavors: plain JSON.
    """

    def __init__(self, source: Source[Sample], subflavors: Mapping[str, Any]) -> None:
        super().__init__(source)
        self.subflavors = dict(subflavors)
        self._fingerprint: str | None = None

    @property
    def schema(self) -> Schema:
        """That of the source, open for further fields."""
        return Schema(self.source.schema.fields, open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the subflavors."""
        if self._fingerprint is None:
            self._fingerprint = digest("subflavors", self.subflavors, self.source.fingerprint)
        return self._fingerprint

    def __getitem__(self, index: int, /) -> Sample:
        return self._flavored(self.source[as_index(index, len(self))])

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return stack(self.get_samples(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return [self._flavored(sample) for sample in samples_of(self.source, np.asarray(indices))]

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        return {"kind": "subflavors", "subflavors": self.subflavors, "source": self.source.recipe()}

    def summary(self) -> str:
        """One line: the subflavors."""
        return line("Subflavors", self.subflavors, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def _flavored(self, sample: Any) -> Any:
        if isinstance(sample, dict):
            return {**sample, FIELD: {**(sample.get(FIELD) or {}), **self.subflavors}}
        return sample

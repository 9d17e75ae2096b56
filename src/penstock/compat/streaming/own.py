"""The samples of a subclass with a `__getitem__` or `get_item` of its own, as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock._columns import stack
from penstock._digest import digest
from penstock._index import as_indices
from penstock._tree import brief, html, line, tree
from penstock.errors import ConfigError
from penstock.order.wrapped import WrappedSource
from penstock.types import Batch, IntArray, Sample, Schema


class OwnSamples(WrappedSource):
    """One stream's samples as the subclass makes them, as a source.

    Args:
        source: of the stream, as stored.
        first: number of its first sample among all of the dataset.
        name: of the subclass.
        made: the subclass's samples by numbers of the dataset, int64[k].
    """

    def __init__(self, source: Any, first: int, name: str, made: Callable[[IntArray], Iterator[Any]]) -> None:
        super().__init__(source)
        self._first = first
        self._name = name
        self._made = made

    @property
    def schema(self) -> Schema:
        """Open: it is up to the subclass."""
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the name of the subclass."""
        return digest("streaming-subclass", self._name, self.source.fingerprint)

    def __getitem__(self, index: int, /) -> Sample:
        return self.get_samples(as_indices([range(len(self))[index]], len(self)))[0]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `indices`: int64[k], in that order."""
        return stack(self.get_samples(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """The samples at `indices`: int64[k], in that order."""
        samples = list(self._made(indices + self._first))
        for sample in samples:
            if not isinstance(sample, Mapping):
                raise ConfigError(
                    f"samples of {self._name} have no columns",
                    found=type(sample).__name__,
                    expected="dicts, for penstock.Loader",
                    hint="Use StreamingDataLoader, or return dicts",
                )
        return samples

    def recipe(self) -> dict[str, Any]:
        """Plain JSON: the name of the subclass, and the source."""
        return {"kind": "streaming-subclass", "name": self._name, "source": self.source.recipe()}

    def summary(self) -> str:
        """One line: the subclass."""
        return line("OwnSamples", {"by": self._name})

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

"""The samples of a subclass with a `__getitem__` or `get_item` of its own, as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock._index import as_indices
from penstock.errors import ConfigError
from penstock.node.over import ChangedView
from penstock.types import IntArray, Sample


class OwnSamples(ChangedView):
    """One stream's samples as the subclass makes them, as a source.

    Args:
        source: of the stream, as stored.
        first: number of its first sample among all of the dataset.
        name: of the subclass.
        made: the subclass's samples by numbers of the dataset, int64[k].
    """

    kind = "streaming-subclass"

    def __init__(self, source: Any, first: int, name: str, made: Callable[[IntArray], Iterator[Any]]) -> None:
        super().__init__(source)
        self._first = first
        self._name = name
        self._made = made

    def own(self) -> dict[str, Any]:
        return {"name": self._name}

    def shown(self) -> dict[str, Any]:
        return {"by": self._name}

    def __getitem__(self, index: int, /) -> Sample:
        return self.get_samples(as_indices([range(len(self))[index]], len(self)))[0]

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
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

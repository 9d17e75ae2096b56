"""Samples by number: `LocalDataset`, indexing like the original's, and the samples of subclasses as a source."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from penstock._arrays import as_index, as_indices
from penstock.compat.streaming.checks import NoPlaceOfASample
from penstock.compat.torch_bases import Dataset
from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.node.over import ChangedView
from penstock.store.place import place_of
from penstock.types import IntArray, Sample


class LocalDataset(Dataset):
    """Map-style torch dataset over a directory of shards, also compressed ones.

    If a subclass defines `get_item`, all indexing uses it.

    Args:
        local: the directory.
        split: subdirectory.
        follow_links: allow links that lead out of the directory.

    Raises:
        NotFound: there is no index.

    Examples:
        >>> from penstock.compat.streaming import LocalDataset
        >>> dataset = LocalDataset("chat-mds")
        >>> len(dataset)
        12
        >>> dataset[3]
        {'id': 3, 'text': 'conversation 3'}
    """

    def __init__(self, local: str, split: str | None = None, *, follow_links: bool = False) -> None:
        self.local = local
        self.split = split or ""
        folder = place_of(local).child(self.split) if self.split else place_of(local)
        self.source: Any = open_source(folder.path, follow_links=follow_links)
        self.num_samples = len(self.source)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, at: Any) -> Any:
        return at_places(self, at)

    def get_item(self, sample_id: int) -> Any:
        """Return sample `sample_id`."""
        return self.source[sample_id]


class OwnSamples(ChangedView):
    """Source of one stream's samples as made by the subclass.

    Args:
        source: source of the stored samples of the stream.
        first: number of its first sample in the dataset.
        name: name of the subclass.
        made: returns the subclass's samples, by their numbers in the dataset, int64[k].
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


class Indexed(Protocol):
    """Dataset whose subclasses may define samples by either method."""

    @property
    def size(self) -> int: ...

    def get_item(self, sample_id: int, /) -> Any: ...

    def __getitem__(self, at: Any, /) -> Any: ...


def at_places(dataset: Indexed, places: Any) -> Any:
    """Return the sample at an index, or a list of samples for a slice, list or array.

    Raises:
        IndexError: there is no such sample.
        NoPlaceOfASample: not an index, such as a float; both a `TypeError` and a `ValueError`.
    """
    if isinstance(places, slice):
        return [dataset.get_item(index) for index in range(*places.indices(dataset.size))]
    if isinstance(places, (list, tuple)) or (isinstance(places, np.ndarray) and places.ndim):
        return [dataset[one] for one in places]
    try:
        place = operator.index(places)
    except TypeError as error:
        raise NoPlaceOfASample(str(error)) from None
    return dataset.get_item(as_index(place, dataset.size))

"""`LocalDataset`: samples by number."""

from __future__ import annotations

from typing import Any

from penstock.compat.streaming.places import at_places
from penstock.compat.torch_bases import Dataset
from penstock.formats import open_source
from penstock.store.place import place_of


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

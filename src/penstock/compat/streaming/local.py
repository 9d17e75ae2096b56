"""`LocalDataset`: samples by number."""

from __future__ import annotations

from typing import Any

from penstock.compat.streaming.bases import Dataset
from penstock.compat.streaming.places import at_places
from penstock.formats import open_source
from penstock.store.place import place_of


class LocalDataset(Dataset):
    """A map-style torch dataset over a folder of shards, compressed ones too.

    A subclass may have a `get_item` of its own: all indexing goes through it.

    Args:
        local: the folder.
        split: folder inside it.
        follow_links: read files through links that lead out of the folder.

    Raises:
        NotFound: there is no index.
    """

    def __init__(self, local: str, split: str | None = None, *, follow_links: bool = False) -> None:
        self.local = local
        self.split = split or ""
        folder = place_of(local).child(self.split) if self.split else place_of(local)
        self.source: Any = open_source(folder.path, follow_links=follow_links)
        self.num_samples = len(self.source)

    @property
    def size(self) -> int:
        """Samples."""
        return self.num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, at: Any) -> Any:
        return at_places(self, at)

    def get_item(self, sample_id: int) -> Any:
        """Sample `sample_id`."""
        return self.source[sample_id]

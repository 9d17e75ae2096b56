"""`LocalDataset`: samples by number."""

from __future__ import annotations

import os
from typing import Any

from penstock.compat.streaming.bases import Dataset
from penstock.compat.streaming.places import at_places
from penstock.formats import open_source


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
        self.source: Any = open_source(os.path.join(local, self.split), follow_links=follow_links)
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

"""Base class of sources that wrap one other source and keep its samples at their indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._index import as_index
from penstock._places import by_name, place_of
from penstock._resolved import excluded_of, prefetch_of
from penstock.abc import Source
from penstock.order.borders import Blocks, blocks_of
from penstock.types import IntArray, Place

_METHODS = ("expect_parts", "block_files", "kept_before", "get_with_shard")
"""Optional methods that mean the same for a wrapper; None if the source lacks one."""


class WrappedSource:
    """A source with one sample for each sample of another source, at the same index.

    Passes on every optional capability of the source. Subclasses add what they do to samples.

    Attributes:
        source: the wrapped source.
    """

    def __init__(self, source: Source[Any]) -> None:
        self.source = source
        # A capability that is None is not supported, which makes isinstance() of its Protocol false.
        self.index_of, self.key_of, self.get, self.get_media_metadata = by_name(source)
        self.prefetch = prefetch_of(source)
        self.expect_parts, self.block_files, self.kept_before, self.get_with_shard = (
            getattr(source, name, None) for name in _METHODS
        )

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples, int64[k] ascending; None without an exclude list."""
        return excluded_of(self.source)

    @property
    def costs(self) -> IntArray | None:
        """Work per sample, int64[n]; None if unknown."""
        return getattr(self.source, "costs", None)

    @property
    def path(self) -> Any:
        """Path of the dataset; None if the source has none."""
        return getattr(self.source, "path", None)

    @property
    def split_size(self) -> int:
        """Samples of the split, including those that the split's own list leaves out."""
        source: Any = self.source
        return source.split_size

    @property
    def preferred_mode(self) -> str:
        """Mode in which `Shuffle` orders the samples by default."""
        return getattr(self.source, "preferred_mode", "global")

    @property
    def block_starts(self) -> IntArray:
        """First sample of each storage block, and the number of samples: int64[n_blocks + 1]."""
        return self.storage_blocks().starts()

    def storage_blocks(self) -> Blocks:
        """Return the source's storage blocks; see `penstock.order.borders`."""
        return blocks_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def place_of(self, index: int, /) -> Place:
        """Return what the source knows of the place of sample `index`."""
        return place_of(self.source, as_index(index, len(self)))

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the source, under the name `source`."""
        return {"source": self.source}

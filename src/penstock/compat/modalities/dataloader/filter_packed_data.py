"""The original's `modalities.dataloader.filter_packed_data`."""

from penstock.compat.modalities.filters import (
    filter_dataset,
)

__all__ = [
    "filter_dataset",
]

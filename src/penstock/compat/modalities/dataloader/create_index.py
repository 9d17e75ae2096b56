"""The original's `modalities.dataloader.create_index`."""

from penstock.compat.modalities.lines import (
    IndexGenerator,
)

__all__ = [
    "IndexGenerator",
]

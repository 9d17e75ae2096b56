"""The original's `modalities.dataloader.create_packed_data`."""

from penstock.compat.modalities.packed import (
    EmbeddedStreamData,
)

__all__ = [
    "EmbeddedStreamData",
]

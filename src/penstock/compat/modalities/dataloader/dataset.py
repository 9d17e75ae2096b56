"""The original's `modalities.dataloader.dataset`."""

from penstock.compat.modalities import (
    CombinedDataset,
    MemMapDataset,
    PackedMemMapDatasetBase,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)

__all__ = [
    "CombinedDataset",
    "MemMapDataset",
    "PackedMemMapDatasetBase",
    "PackedMemMapDatasetContinuous",
    "PackedMemMapDatasetMegatron",
]

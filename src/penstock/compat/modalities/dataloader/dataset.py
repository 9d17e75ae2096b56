"""The original's `modalities.dataloader.dataset`."""

from penstock.compat.modalities import (
    CombinedDataset,
    MemMapDataset,
    PackedMemMapDatasetBase,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)
from penstock.compat.modalities.elsewhere import of_modalities

__all__ = [
    "CombinedDataset",
    "MemMapDataset",
    "PackedMemMapDatasetBase",
    "PackedMemMapDatasetContinuous",
    "PackedMemMapDatasetMegatron",
]

__getattr__ = of_modalities(__name__, "DummyDataset", "DummyDatasetConfig", "DummySampleConfig", "DummySampleDataType")

"""The original's `modalities.dataloader.samplers`."""

from penstock.compat.modalities.sampler import (
    ResumableDistributedSampler,
)

__all__ = [
    "ResumableDistributedSampler",
]

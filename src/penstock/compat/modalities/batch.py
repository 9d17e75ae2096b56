"""The original's `modalities.batch`."""

from penstock.compat.modalities.collators import (
    DatasetBatch,
)

__all__ = [
    "DatasetBatch",
]

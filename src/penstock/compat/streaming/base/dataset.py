"""The original's `streaming.base.dataset`."""

from penstock.compat.streaming.dataset import StreamingDataset

__all__ = ["StreamingDataset"]

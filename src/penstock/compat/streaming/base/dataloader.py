"""The original's `streaming.base.dataloader`."""

from penstock.compat.streaming.dataloader import StreamingDataLoader

__all__ = ["StreamingDataLoader"]

"""The original's `streaming.base.local`."""

from penstock.compat.streaming.local import LocalDataset

__all__ = ["LocalDataset"]

"""The original's `streaming.base.format.mds`."""

from penstock.compat.streaming.writers import MDSWriter

__all__ = ["MDSWriter"]

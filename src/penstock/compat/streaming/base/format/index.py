"""The original's `streaming.base.format.index`."""

from penstock.compat.streaming.base.format import get_index_basename

__all__ = ["get_index_basename"]

"""Streams and sources → training batches. The torch side is `penstock.load.torch`."""

from penstock.load.collate import collate_columns
from penstock.load.lanes import merge_states
from penstock.load.loader import Loader

__all__ = ["Loader", "collate_columns", "merge_states"]

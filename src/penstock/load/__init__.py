"""Loaders, which turn streams and sources into training batches.

For torch see `penstock.load.torch`, for jax `penstock.load.jax`.
"""

from penstock.load.collate import collate_columns
from penstock.load.lanes import merge_states
from penstock.load.loader import Loader

__all__ = ["Loader", "collate_columns", "merge_states"]

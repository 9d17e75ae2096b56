"""The original's `streaming.base.format.mds`."""

from penstock._facade import modules_of
from penstock.compat.streaming.writers import MDSWriter

__getattr__ = modules_of(__name__)

__all__ = ["MDSWriter"]

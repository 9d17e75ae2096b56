"""The original's `streaming.base.format.base`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.streaming.writers import Writer as Writer

__getattr__ = modules_of(__name__)

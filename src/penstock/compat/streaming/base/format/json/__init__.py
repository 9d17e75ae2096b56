"""The original's `streaming.base.format.json`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.streaming.writers import JSONWriter as JSONWriter

__getattr__ = modules_of(__name__)

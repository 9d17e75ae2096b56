"""The original's `streaming.base.format.mds.writer`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.writers import MDSWriter as MDSWriter

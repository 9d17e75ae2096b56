"""Energon's module `source_info`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.samples import SourceInfo as SourceInfo

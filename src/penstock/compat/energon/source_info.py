"""Energon's module `source_info`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.samples import SourceInfo as SourceInfo
from penstock.cook.stores import add_source

add_source_info = add_source

"""Energon's module `cache.no_cache`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.stores import DirectLazy as DirectLazy
from penstock.compat.energon.stores import NoCachePool as NoCachePool

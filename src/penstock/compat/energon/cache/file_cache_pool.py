"""Energon's module `cache.file_cache_pool`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.stores import FileCacheLazy as FileCacheLazy
from penstock.compat.energon.stores import FileStoreCachePool as FileStoreCachePool

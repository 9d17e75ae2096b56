"""Energon's module `cache.base`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.cookers import FileStoreDecoder as FileStoreDecoder
from penstock.compat.energon.stores import CachePool as CachePool
from penstock.compat.energon.stores import FileStore as FileStore
from penstock.compat.energon.stores import Lazy as Lazy
from penstock.compat.energon.stores import MockLazy as MockLazy
from penstock.compat.energon.stores import PrimaryFileStore as PrimaryFileStore

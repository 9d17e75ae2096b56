"""Energon's module `cache`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.cookers import FileStoreDecoder as FileStoreDecoder
from penstock.compat.energon.stores import CachePool as CachePool
from penstock.compat.energon.stores import DecodeFileStore as DecodeFileStore
from penstock.compat.energon.stores import DirectLazy as DirectLazy
from penstock.compat.energon.stores import FileCacheLazy as FileCacheLazy
from penstock.compat.energon.stores import FileStore as FileStore
from penstock.compat.energon.stores import FileStoreCachePool as FileStoreCachePool
from penstock.compat.energon.stores import JsonlFileStore as JsonlFileStore
from penstock.compat.energon.stores import Lazy as Lazy
from penstock.compat.energon.stores import MockLazy as MockLazy
from penstock.compat.energon.stores import NoCachePool as NoCachePool
from penstock.compat.energon.stores import PrimaryFileStore as PrimaryFileStore
from penstock.compat.energon.stores import SystemFileStore as SystemFileStore
from penstock.compat.energon.stores import WebdatasetFileStore as WebdatasetFileStore

__getattr__ = modules_of(__name__)

"""Energon's module `cache.file_store`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.stores import DecodeFileStore as DecodeFileStore
from penstock.compat.energon.stores import JsonlFileStore as JsonlFileStore
from penstock.compat.energon.stores import SystemFileStore as SystemFileStore
from penstock.compat.energon.stores import WebdatasetFileStore as WebdatasetFileStore

"""Stores of files: local files, object stores and web servers, memory, and a cache of computed arrays."""

from penstock.store.derived import DerivedCache, cache_folder
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.place import resolve

__all__ = ["DerivedCache", "LocalStore", "MemoryStore", "cache_folder", "resolve"]

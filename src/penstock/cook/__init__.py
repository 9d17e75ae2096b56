"""Cooks raw samples into typed ones, and packs on the fly, where the number of outputs is known only after cooking."""

from __future__ import annotations

from penstock.cook.cookers import Cooker, SkipSample
from penstock.cook.cooking import CookedSource, CookedStream, cook
from penstock.cook.crude import Crude, CrudeSample
from penstock.cook.lazy import Lazy, Prefetch
from penstock.cook.packstream import PackStream
from penstock.cook.stores import FileStore

__all__ = [
    "CookedSource",
    "CookedStream",
    "Cooker",
    "Crude",
    "CrudeSample",
    "FileStore",
    "Lazy",
    "PackStream",
    "Prefetch",
    "SkipSample",
    "cook",
]

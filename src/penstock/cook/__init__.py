"""Functions that convert crude samples to typed ones, and packing on the fly."""

from __future__ import annotations

from penstock.cook.cookers import Cooker, SkipSample
from penstock.cook.cooking import CookedSource, CookedStream, cook
from penstock.cook.crude import Crude, CrudeSample
from penstock.cook.packstream import PackStream
from penstock.cook.stores import FileStore, Lazy, Prefetch

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

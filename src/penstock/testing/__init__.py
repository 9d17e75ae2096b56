"""Suites and helpers for tests: of Penstock itself, of plug-ins, and of what is built on it.

A format, a store, an order or a stream is tested by inheriting its suite and naming what is to be tested. Suites need
pytest and hypothesis; the sources in memory and the stores need neither. Everything is imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.counting import CountingStore as CountingStore
    from penstock.testing.counting import LatencyStore as LatencyStore
    from penstock.testing.equality import same as same
    from penstock.testing.faults import FaultStore as FaultStore
    from penstock.testing.faults import FaultyOs as FaultyOs
    from penstock.testing.faults import count_operations as count_operations
    from penstock.testing.faults import faults_everywhere as faults_everywhere
    from penstock.testing.formats import FormatSuite as FormatSuite
    from penstock.testing.memory import MemorySource as MemorySource
    from penstock.testing.memory import MemoryTokens as MemoryTokens
    from penstock.testing.orders import OrderLaws as OrderLaws
    from penstock.testing.sources import SourceLaws as SourceLaws
    from penstock.testing.sources import TokenSourceLaws as TokenSourceLaws
    from penstock.testing.stores import StoreSuite as StoreSuite
    from penstock.testing.streams import StreamLaws as StreamLaws
    from penstock.testing.tokens import TokenFormatSuite as TokenFormatSuite
    from penstock.testing.web import FileServer as FileServer

_WHERE = {
    "CountingStore": "counting",
    "FaultStore": "faults",
    "FaultyOs": "faults",
    "FileServer": "web",
    "FormatSuite": "formats",
    "LatencyStore": "counting",
    "MemorySource": "memory",
    "MemoryTokens": "memory",
    "OrderLaws": "orders",
    "SourceLaws": "sources",
    "StoreSuite": "stores",
    "StreamLaws": "streams",
    "TokenFormatSuite": "tokens",
    "TokenSourceLaws": "sources",
    "count_operations": "faults",
    "faults_everywhere": "faults",
    "same": "equality",
}

__all__ = [
    "CountingStore",
    "FaultStore",
    "FaultyOs",
    "FileServer",
    "FormatSuite",
    "LatencyStore",
    "MemorySource",
    "MemoryTokens",
    "OrderLaws",
    "SourceLaws",
    "StoreSuite",
    "StreamLaws",
    "TokenFormatSuite",
    "TokenSourceLaws",
    "count_operations",
    "faults_everywhere",
    "same",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"penstock.testing.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__

"""Test suites and helpers for plug-ins, and for code built on Penstock.

To test a format, a store, an order or a stream, inherit its suite and name the object to test. Suites require pytest
and hypothesis; the sources in memory and the stores require neither. Every name is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.testing.cluster import ClusterSuite as ClusterSuite
    from penstock.testing.counting import CountingStore as CountingStore
    from penstock.testing.counting import LatencyStore as LatencyStore
    from penstock.testing.equality import same as same
    from penstock.testing.executors import ExecutorSuite as ExecutorSuite
    from penstock.testing.faults import FaultStore as FaultStore
    from penstock.testing.faults import FaultyOs as FaultyOs
    from penstock.testing.faults import count_operations as count_operations
    from penstock.testing.faults import faults_everywhere as faults_everywhere
    from penstock.testing.formats import FormatSuite as FormatSuite
    from penstock.testing.memory import KeyedSource as KeyedSource
    from penstock.testing.memory import MemorySource as MemorySource
    from penstock.testing.memory import MemoryTokens as MemoryTokens
    from penstock.testing.orders import OrderLaws as OrderLaws
    from penstock.testing.sources import SourceLaws as SourceLaws
    from penstock.testing.sources import TokenSourceLaws as TokenSourceLaws
    from penstock.testing.stores import StoreSuite as StoreSuite
    from penstock.testing.streams import StreamLaws as StreamLaws
    from penstock.testing.tokens import TokenFormatSuite as TokenFormatSuite
    from penstock.testing.web import FileServer as FileServer

__getattr__, __dir__ = facade(__name__)

"""Stores that watch or delay another one are stores themselves."""

from __future__ import annotations

import time

import pytest

from penstock.abc import SupportsMmap
from penstock.errors import Unreachable
from penstock.store import MemoryStore
from penstock.testing.counting import CountingStore, LatencyStore
from penstock.testing.stores import StoreSuite


class TestCountingStore(StoreSuite):
    @pytest.fixture
    def store(self) -> CountingStore:
        return CountingStore(MemoryStore())

    @pytest.fixture
    def root(self) -> str:
        return "root"


class TestLatencyStore(StoreSuite):
    @pytest.fixture
    def store(self) -> LatencyStore:
        return LatencyStore(MemoryStore(), 0.0)

    @pytest.fixture
    def root(self) -> str:
        return "root"


def test_reads_are_counted() -> None:
    store = CountingStore(MemoryStore({"a": b"0123456789"}))
    store.get("a")
    store.get("a", 8, 100)
    store.get_ranges("a", [(0, 1), (2, 5)])
    store.size("a")
    assert (store.reads, store.read_bytes) == (4, 16)
    assert not isinstance(store, SupportsMmap)


def test_every_call_that_reads_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    store = LatencyStore(MemoryStore({"f/a": b"0123456789"}), 0.25)
    assert store.get("f/a") == b"0123456789"
    assert store.get_ranges("f/a", [(0, 1), (1, 2)]) == [b"0", b"1"]
    assert store.size("f/a") == 10
    assert list(store.list("f")) == ["f/a"]
    assert waits == [0.25] * 4
    assert store.reads == 3


def test_bandwidth_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    store = LatencyStore(MemoryStore({"f/a": b"0123456789"}), 0.25, bytes_per_s=5, failures=2)
    for _ in range(2):
        with pytest.raises(Unreachable, match="f/a"):
            store.get_ranges("f/a", [(0, 1)])
    assert store.get("f/a", 0, 5) == b"01234"
    assert store.get_ranges("f/a", [(0, 1), (1, 5)]) == [b"0", b"1234"]
    assert waits == [0.25, 0.25, 0.25, 1.0, 0.25, 1.0]

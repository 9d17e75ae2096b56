"""Fingerprints of data: few reads, the same for a copy, another for other content."""

from __future__ import annotations

import numpy as np

from penstock.store.fingerprint import sample_fingerprint
from penstock.store.memory import MemoryStore
from penstock.testing.counting import CountingStore


def test_pinned() -> None:
    # States hold fingerprints: they never change for the same data.
    store = MemoryStore({"a": bytes(range(256)) * 1000})
    assert sample_fingerprint(store, "pbin", b"index", [("data", "a")]) == "17b43a524ced8ca4a961fd810aa845f0"


def test_path_and_order_do_not_matter() -> None:
    store = MemoryStore({"here/a": b"1" * 9000, "here/b": b"2", "there/x": b"1" * 9000, "there/y": b"2"})
    first = sample_fingerprint(store, "f", b"", [("a", "here/a"), ("b", "here/b")])
    assert first == sample_fingerprint(store, "f", b"", [("b", "there/y"), ("a", "there/x")])


def test_content_matters() -> None:
    store = MemoryStore({"a": b"1" * 9000, "b": b"1" * 9001, "c": b"1" * 8999 + b"2"})
    found = {
        sample_fingerprint(store, "f", b"", [("a", "a")]),
        sample_fingerprint(store, "f", b"", [("a", "b")]),
        sample_fingerprint(store, "f", b"", [("a", "c")]),
        sample_fingerprint(store, "f", b"", [("b", "a")]),
        sample_fingerprint(store, "f", b"x", [("a", "a")]),
        sample_fingerprint(store, "g", b"", [("a", "a")]),
        sample_fingerprint(store, "f", b"", []),
    }
    assert len(found) == 7


def test_every_byte_of_a_small_file_counts() -> None:
    data = bytearray(4096 * 4)
    found = set()
    for place in (None, *range(0, len(data), 97), len(data) - 1):
        changed = bytearray(data)
        if place is not None:
            changed[place] = 1
        found.add(sample_fingerprint(MemoryStore({"a": bytes(changed)}), "f", b"", [("a", "a")]))
    assert len(found) == 2 + len(range(0, len(data), 97))


def test_reads_are_few_at_any_size() -> None:
    data = np.random.default_rng(0).bytes(1 << 20)
    store = CountingStore(MemoryStore({str(number): data for number in range(100)}))
    sample_fingerprint(store, "f", b"", [(str(number), str(number)) for number in range(100)])
    assert store.reads <= 64
    assert store.read_bytes <= 64 * 4096


def test_odd_names() -> None:
    store = MemoryStore({"a": b"x"})
    assert sample_fingerprint(store, "f", b"", [("a\udcff", "a")]) != sample_fingerprint(store, "f", b"", [("a", "a")])

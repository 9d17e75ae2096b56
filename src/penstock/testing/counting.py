"""Stores that count or delay the calls to another store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from penstock.abc import Store
from penstock.errors import Unreachable
from penstock.store.base import View


class CountingStore(View):
    """Store that counts the reads from another one. It has no `mmap`: every byte is read by a call.

    Attributes:
        reads: number of calls that read data.
        read_bytes: number of bytes returned by these calls.

    Examples:
        >>> from penstock.store import LocalStore
        >>> from penstock.testing import CountingStore
        >>> store = CountingStore(LocalStore())
        >>> data = store.get("docs.jsonl", 0, 100)
        >>> parts = store.get_ranges("docs.jsonl", [(0, 10), (20, 30)])
        >>> store.reads, store.read_bytes
        (3, 120)
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self.reads = 0
        self.read_bytes = 0

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Implement `Store.get`; one read."""
        data = self.store.get(path, start_bytes, length_bytes)
        self._count([data])
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Implement `Store.get_ranges`; one read per range."""
        found = self.store.get_ranges(path, ranges)
        self._count(found)
        return found

    def _count(self, found: Sequence[bytes]) -> None:
        self.reads += len(found)
        self.read_bytes += sum(map(len, found))


class LatencyStore(CountingStore):
    """Store that simulates the latency of a remote one, and counts like `CountingStore`.

    Args:
        store: store with the files.
        delay_s: latency in seconds of every call that reads.
        bytes_per_s: bandwidth after that; None for unlimited.
        failures: number of the next reads that fail, each after its delay; may be set later.

    Examples:
        >>> from penstock.errors import Unreachable
        >>> from penstock.store import LocalStore
        >>> from penstock.testing import LatencyStore
        >>> store = LatencyStore(LocalStore(), delay_s=0.001, failures=1)
        >>> try:
        ...     store.get("docs.jsonl", 0, 5)
        ... except Unreachable as error:
        ...     print(error.what)
        the store doesn't answer (simulated)
        >>> store.get("docs.jsonl", 0, 5)
        b'{"id"'
    """

    def __init__(self, store: Store, delay_s: float, *, bytes_per_s: float | None = None, failures: int = 0) -> None:
        super().__init__(store)
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.failures = failures

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Implement `Store.get`, after the delay."""
        self._wait(path)
        return self._pass([super().get(path, start_bytes, length_bytes)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Implement `Store.get_ranges`, after one delay."""
        self._wait(path)
        return self._pass(super().get_ranges(path, ranges))

    def size(self, path: str) -> int:
        """Implement `Store.size`, after the delay."""
        self._wait(path)
        return super().size(path)

    def list(self, prefix: str) -> Iterator[str]:
        """Implement `Store.list`, after the delay."""
        self._wait(prefix)
        return super().list(prefix)

    def _wait(self, path: str) -> None:
        time.sleep(self.delay_s)
        if self.failures > 0:
            self.failures -= 1
            raise Unreachable("the store doesn't answer (simulated)", path=path)

    def _pass(self, found: list[bytes]) -> list[bytes]:
        if self.bytes_per_s is not None:
            time.sleep(sum(map(len, found)) / self.bytes_per_s)
        return found

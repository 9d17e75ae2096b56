"""Stores that count or delay the calls to another store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from penstock.abc import Staged, Store
from penstock.errors import Unreachable


class CountingStore:
    """Passes everything on to `store` and counts what is read. It has no `mmap`: every byte goes through a call.

    Attributes:
        reads: calls that read data.
        read_bytes: bytes that these calls returned.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reads = 0
        self.read_bytes = 0

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """As `Store.get`; one read."""
        data = self.store.get(path, start_bytes, length_bytes)
        self._count([data])
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `Store.get_ranges`; one read a range."""
        found = self.store.get_ranges(path, ranges)
        self._count(found)
        return found

    def size(self, path: str) -> int:
        """As `Store.size`."""
        return self.store.size(path)

    def exists(self, path: str) -> bool:
        """As `Store.exists`."""
        return self.store.exists(path)

    def is_folder(self, path: str) -> bool:
        """As `Store.is_folder`."""
        return self.store.is_folder(path)

    def list(self, prefix: str) -> Iterator[str]:
        """As `Store.list`."""
        return self.store.list(prefix)

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """As `Store.stage`."""
        return self.store.stage(path, overwrite=overwrite)

    def commit(self, staged: Sequence[Staged]) -> None:
        """As `Store.commit`."""
        self.store.commit(staged)

    def delete(self, path: str) -> None:
        """As `Store.delete`."""
        self.store.delete(path)

    def _count(self, found: Sequence[bytes]) -> None:
        self.reads += len(found)
        self.read_bytes += sum(map(len, found))


class LatencyStore(CountingStore):
    """Simulates a remote store with latency; counts as `CountingStore` does.

    Args:
        store: where the files are.
        delay_s: latency of every call that reads.
        bytes_per_s: bandwidth after that; unlimited where None.
        failures: how many of the next reads fail, each after its delay; may be set later.
    """

    def __init__(self, store: Store, delay_s: float, *, bytes_per_s: float | None = None, failures: int = 0) -> None:
        super().__init__(store)
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.failures = failures

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """As `Store.get`, after the delay."""
        self._wait(path)
        return self._pass([super().get(path, start_bytes, length_bytes)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `Store.get_ranges`, after one delay."""
        self._wait(path)
        return self._pass(super().get_ranges(path, ranges))

    def size(self, path: str) -> int:
        """As `Store.size`, after the delay."""
        self._wait(path)
        return super().size(path)

    def list(self, prefix: str) -> Iterator[str]:
        """As `Store.list`, after the delay."""
        self._wait(prefix)
        return super().list(prefix)

    def _wait(self, path: str) -> None:
        time.sleep(self.delay_s)
        if self.failures > 0:
            self.failures -= 1
            raise Unreachable("the store does not answer, as it was told", path=path)

    def _pass(self, found: list[bytes]) -> list[bytes]:
        if self.bytes_per_s is not None:
            time.sleep(sum(map(len, found)) / self.bytes_per_s)
        return found

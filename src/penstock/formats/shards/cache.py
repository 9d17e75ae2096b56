"""Cache of open shards, with a bounded number of maps and a bounded number of bytes in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from penstock.formats.shards.files import OpenShard

BUDGET_BYTES = 1 << 30
"""Memory for decompressed shards and tables of offsets: 16 shards of the default size limit."""

MOST_SHARDS = 4096
"""Maximum number of open shards."""


class ShardCache:
    """Open shards by number, with eviction of the least recently used ones.

    Memory: `budget_bytes`, and always the shard opened last. Thread-safe, and safe after fork. An evicted shard is kept
    alive by existing views of it.

    Args:
        load: opens a shard; called by one thread at a time for each shard.
        budget_bytes: bytes that shards may hold in memory.
        most_shards: number of shards that may be open. Maps keep no files open, but their number per process is
            limited.

    Attributes:
        shards: open shards, for readers that look here first and call `open` only for missing ones.
    """

    __slots__ = ("_budget_bytes", "_held_bytes", "_load", "_loading", "_lock", "_most_shards", "_process", "shards")

    def __init__(
        self, load: Callable[[int], OpenShard], budget_bytes: int = BUDGET_BYTES, most_shards: int = MOST_SHARDS
    ) -> None:
        self.shards: dict[int, OpenShard] = {}
        self._load = load
        self._budget_bytes = budget_bytes
        self._most_shards = most_shards
        self._held_bytes = 0
        self._begin()

    def open(self, number: int) -> OpenShard:
        """Return a shard, opening it if necessary; raises the errors of `load`."""
        if self._process != os.getpid():
            self._begin()  # a thread of the parent may have held a lock when this process was forked
        with self._lock:
            turn = self._loading.setdefault(number, threading.Lock())
        with turn:
            with self._lock:
                found = self.shards.get(number)
            if found is None:
                try:
                    found = self._load(number)
                    with self._lock:
                        self._keep(number, found)
                finally:
                    self._loading.pop(number, None)
        return found

    def drop(self, number: int) -> None:
        with self._lock:
            found = self.shards.pop(number, None)
            self._held_bytes -= 0 if found is None else found.cost_bytes

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loading: dict[int, threading.Lock] = {}
        self._process = os.getpid()

    def _keep(self, number: int, shard: OpenShard) -> None:
        self.shards[number] = shard
        self._held_bytes += shard.cost_bytes
        if len(self.shards) <= self._most_shards and self._held_bytes <= self._budget_bytes:
            return
        room = self._most_shards - self._most_shards // 8  # evict several at once, as the search is slow
        for old in sorted(self.shards, key=lambda one: self.shards[one].used):
            if len(self.shards) <= room and self._held_bytes <= self._budget_bytes:
                break
            if old != number:
                self._held_bytes -= self.shards.pop(old).cost_bytes

"""Counts the requests and bytes of a store."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Requests and bytes of a store in this process.

    Attributes:
        requests: made, failed tries included.
        fetched_bytes: received.
        asked_bytes: requested from a cached store by its callers; more than `fetched_bytes` where copies answered.
        copies: whole files that were fetched into the cache.
    """

    requests: int = 0
    fetched_bytes: int = 0
    asked_bytes: int = 0
    copies: int = 0


class Counters(threading.local):
    """Traffic, counted by each thread for itself, so that no count is lost."""

    def __init__(self, all_threads: list[Traffic]) -> None:
        self.all_threads = all_threads
        self.mine = Traffic()
        all_threads.append(self.mine)

    def total(self) -> Traffic:
        """Over all threads of this process."""
        names = Traffic.__slots__
        return Traffic(**{name: sum(getattr(one, name) for one in self.all_threads) for name in names})

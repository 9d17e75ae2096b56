"""Open shards: bounded in number and in memory, opened once, and safe in threads and after fork."""

from __future__ import annotations

import os
import threading
from time import monotonic
from typing import Any

import pytest

from penstock.formats.shards.cache import ShardCache
from penstock.testing.elsewhere import in_a_fork, in_threads


class Opened:
    def __init__(self, number: int, cost_bytes: int) -> None:
        self.number = number
        self.cost_bytes = cost_bytes
        self.used = monotonic()


def make(cost_bytes: int = 10, **options: Any) -> tuple[ShardCache, list[int]]:
    loaded: list[int] = []

    def load(number: int) -> Any:
        loaded.append(number)
        return Opened(number, cost_bytes)

    return ShardCache(load, **options), loaded


def test_opened_once() -> None:
    cache, loaded = make()
    assert cache.open(3) is cache.open(3)
    assert cache.shards[3] is cache.open(3)
    assert loaded == [3]


def test_bounded_in_number_and_in_bytes() -> None:
    for options in ({"most_shards": 4}, {"budget_bytes": 40}):
        cache, loaded = make(**options)
        for number in range(20):
            cache.open(number)
            assert len(cache.shards) <= 4
        assert 19 in cache.shards
        assert loaded == list(range(20))


def test_one_shard_larger_than_the_budget() -> None:
    cache, _ = make(cost_bytes=100, budget_bytes=50)
    for number in range(3):
        cache.open(number)
        assert list(cache.shards) == [number]


def test_what_is_used_stays() -> None:
    cache, loaded = make(most_shards=3)
    for number in range(12):
        cache.open(0).used = monotonic()
        cache.open(number)
    assert loaded.count(0) == 1


def test_a_failure_is_not_kept() -> None:
    failures = [True, False]

    def load(number: int) -> Any:
        if failures.pop(0):
            raise OSError("once")
        return Opened(number, 1)

    cache = ShardCache(load)
    with pytest.raises(OSError, match="once"):
        cache.open(1)
    assert cache.open(1).cost_bytes == 1


def test_threads_wait_for_one_opening() -> None:
    loaded: list[int] = []
    entered = threading.Barrier(4, timeout=30)

    def load(number: int) -> Any:
        loaded.append(number)
        return Opened(number, 1)

    cache = ShardCache(load)

    def read(_number: int) -> None:
        entered.wait()
        for number in range(50):
            cache.open(number)

    in_threads(read, 4)
    assert sorted(loaded) == list(range(50))


def test_a_lock_held_at_the_fork_does_not_hang_the_child() -> None:
    held, done = threading.Event(), threading.Event()
    parent = os.getpid()

    def load(number: int) -> Any:
        if number == 1 and os.getpid() == parent:
            held.set()
            done.wait(30)
        return Opened(number, 1)

    cache = ShardCache(load)
    thread = threading.Thread(target=cache.open, args=(1,))
    thread.start()
    held.wait(30)
    try:
        in_a_fork(lambda: cache.open(1))
    finally:
        done.set()
        thread.join()

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.load.workers import AHEAD_BYTES, LEAST_BYTES, CreditWindow


@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.integers(0, AHEAD_BYTES // 8), st.integers(0, 4 * AHEAD_BYTES)), min_size=1, max_size=300),
    st.integers(0, 9),
)
def test_what_is_ahead_is_bounded_and_everything_comes(prefetch: int, sizes_bytes: list[int], bunch: int) -> None:
    window = CreditWindow(prefetch)
    waiting: list[int] = []
    lock, there, most = threading.Lock(), threading.Semaphore(0), [0, 0]

    def make() -> None:
        for size_bytes in sizes_bytes:
            if not window.wait():
                return
            with lock:
                before_bytes, before = sum(waiting), len(waiting)
                counted_bytes = window.produced(size_bytes)
                waiting.append(counted_bytes)
            if before >= prefetch:
                most[0] = max(most[0], before_bytes)
            most[1] = max(most[1], before + 1)
            there.release()

    thread = threading.Thread(target=make)
    thread.start()
    told = told_bytes = 0
    first = True
    for _ in sizes_bytes:
        assert there.acquire(timeout=20), "the maker sleeps though there is room"
        with lock:
            told_bytes += waiting.pop(0)
        told += 1
        # As a parent process does: several at once, but never half of what may be ahead.
        if first or told > bunch or told_bytes >= AHEAD_BYTES // 2:
            window.consumed(told, told_bytes)
            told = told_bytes = 0
            first = False
    thread.join(20)
    assert not thread.is_alive()
    # What is told late counts as ahead; what is made beyond `prefetch` began below the limit.
    assert most[0] < AHEAD_BYTES
    assert most[1] <= max(prefetch, AHEAD_BYTES // LEAST_BYTES)


def test_before_the_first_is_taken_no_more_than_prefetch_is_ahead() -> None:
    window = CreditWindow(2)
    for _ in range(2):
        assert window.wait()
        window.produced(10)
    waited = threading.Thread(target=window.wait)
    waited.start()
    waited.join(0.1)
    assert waited.is_alive()
    window.consumed(1, LEAST_BYTES)
    waited.join(20)
    assert not waited.is_alive()


@pytest.mark.parametrize("asleep", [False, True])
def test_stopping_ends_the_wait(asleep: bool) -> None:
    window = CreditWindow(1)
    if asleep:
        window.produced(AHEAD_BYTES)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(window.wait()))
    if not asleep:
        window.stop()
    thread.start()
    if asleep:
        thread.join(0.1)
        assert thread.is_alive()
        window.stop()
    thread.join(20)
    assert found == [False]

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any

import pytest

from penstock import _threads
from penstock._threads import Pool


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("pool-of-test-")]


def settled() -> bool:
    end_s = time.monotonic() + 30
    while threads() and time.monotonic() < end_s:
        time.sleep(0.01)
    return not threads()


def test_results_come_in_order_and_errors_in_their_place() -> None:
    def half(number: int) -> int:
        if number % 2:
            raise ValueError(str(number))
        time.sleep(0.001 * (10 - number))
        return number // 2

    with Pool(4, "pool-of-test") as pool:
        assert list(pool.map(half, [0, 2, 4, 6])) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="3"):
            list(pool.map(half, [0, 3, 5]))
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
        assert 1 <= len(threads()) <= 4
    assert settled()


def test_one_thread_is_enough_for_one_task_after_another() -> None:
    with Pool(8, "pool-of-test") as pool:
        for number in range(20):
            pool.submit(int, number).result()
            time.sleep(0.002)
        assert len(threads()) < 8


def test_closing_drops_what_was_not_begun() -> None:
    begun, ends = threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        ends.wait(30)
        return 1

    pool = Pool(1, "pool-of-test")
    running, waiting = pool.submit(first), pool.submit(int, 2)
    assert begun.wait(30)
    threading.Timer(0.05, ends.set).start()
    pool.close()
    pool.close()
    assert running.result() == 1
    with pytest.raises(CancelledError):
        waiting.result(30)
    assert settled()


def test_dropping_it_ends_its_threads() -> None:
    pool = Pool(3, "pool-of-test")
    assert list(pool.map(int, range(30))) == list(range(30))
    del pool
    gc.collect()
    assert settled()


def test_a_forked_process_has_threads_of_its_own() -> None:
    pool = Pool(2, "pool-of-test")
    assert pool.submit(int, 1).result() == 1
    pid = os.fork()
    if not pid:
        os._exit(pool.submit(int, 5).result(30))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    pool.close()


def test_while_the_process_ends_it_works_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    ended.set()
    monkeypatch.setattr(_threads, "_ended", ended)
    seen: list[Any] = []
    assert Pool(2, "pool-of-test").submit(lambda: seen.append(threading.current_thread())).result() is None
    assert seen == [threading.main_thread()]
    assert _threads.sleep(60)


def test_a_call_that_was_taken_is_answered() -> None:
    """A thread that is ended between taking a call and running it would leave its caller waiting."""
    taken = threading.Event()

    class Slow:
        """A queue whose calls take a while to come out."""

        def __init__(self) -> None:
            self.inner: SimpleQueue[Any] = SimpleQueue()
            self.put, self.get = self.inner.put, self.inner.get

        def get_nowait(self) -> Any:
            found = self.inner.get_nowait()
            if found is not None:
                taken.set()
                time.sleep(0.3)
            return found

    with Pool(1, "slow") as pool:
        pool._tasks = Slow()  # type: ignore[assignment]
        future = pool.submit(time.sleep, 0.1)
        assert taken.wait(5)
        _threads._raise_in(pool._threads[0], time.monotonic() + 5)
        assert isinstance(future.exception(timeout=5), SystemExit)

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

from penstock.errors import Corrupt
from penstock.load.batches import ReadAhead
from penstock.load.collate import collate_columns
from penstock.load.read import ReadTask, read_batches
from penstock.load.workers import AHEAD_BYTES, LEAST_BYTES, ThreadWorkers


def task_of(source: Any, *, collate: Any = collate_columns, num_batches: int | None = 40) -> ReadTask:
    return ReadTask(source, 0, 1, 4, num_batches, len(source), collate, "raise", 0.0)


def Threads(task: ReadTask, first: int, workers: int, prefetch: int) -> ReadAhead:
    return ReadAhead(task, first, workers, lambda producer, count: ThreadWorkers(producer, count, prefetch, 60.0))


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-load-")]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_batches_come_in_order_from_any_number_on(numbers: Any, workers: int, prefetch: int) -> None:
    task = task_of(numbers(160))
    expected = [batch["id"].tolist() for batch in read_batches(task, 3, 1)]
    pipe = Threads(task, 3, workers, prefetch)
    assert [next(pipe)[0]["id"].tolist() for _ in range(37)] == expected
    pipe.close()
    assert not loader_threads()


def settled(source: Any) -> int:
    """Reads, once there are no more for a while."""
    before, deadline = -1, time.monotonic() + 10
    while before != source.reads and time.monotonic() < deadline:
        before = source.reads
        time.sleep(0.1)
    return before


def large(batch: Any) -> Any:
    return {**batch, "pixels": np.zeros(AHEAD_BYTES, np.uint8)}


def unknown(batch: Any) -> Any:
    return {**batch, "image": object()}


@pytest.mark.parametrize("collate", [large, unknown])
def test_no_more_than_prefetch_large_batches_a_worker_are_read_ahead(numbers: Any, collate: Any) -> None:
    source = numbers(1000)
    pipe = Threads(task_of(source, num_batches=None, collate=collate), 0, 3, 2)
    assert settled(source) == 6
    next(pipe)
    assert settled(source) == 7
    pipe.close()


def test_small_batches_are_read_ahead_up_to_a_number_of_bytes(numbers: Any) -> None:
    source = numbers(1000)
    most = AHEAD_BYTES // LEAST_BYTES
    pipe = Threads(task_of(source, num_batches=None), 0, 3, 2)
    assert settled(source) == 3 * 2, "before the first is taken"
    for _ in range(3):
        next(pipe)
    assert settled(source) == 3 * (most + 1)
    for _ in range(3 * (most // 2)):
        next(pipe)
    # Those that sleep do so until half of it is taken.
    assert settled(source) == 3 * (most + 1)
    for _ in range(3):
        next(pipe)
    assert settled(source) == 3 * (most + most // 2 + 2)
    pipe.close()


def test_an_error_comes_in_its_place(numbers: Any) -> None:
    def fail(indices: list[int]) -> None:
        if 21 in indices:
            raise Corrupt("bad", path="x.bin", offset_bytes=21)

    pipe = Threads(task_of(numbers(160, fail=fail)), 0, 3, 2)
    assert [next(pipe)[0]["id"][0] for _ in range(5)] == [0, 4, 8, 12, 16]
    with pytest.raises(Corrupt) as caught:
        next(pipe)
    assert (caught.value.path, caught.value.offset_bytes) == ("x.bin", 21)
    pipe.close()
    assert not loader_threads()


def test_closing_twice_and_while_workers_read(numbers: Any) -> None:
    pipe = Threads(task_of(numbers(160, delay_s=0.02)), 0, 2, 1)
    next(pipe)
    pipe.close()
    pipe.close()
    assert not loader_threads()


def test_closing_ends_the_wait_before_a_retry_at_once(numbers: Any) -> None:
    failing = threading.Event()

    def fail(_: list[int]) -> None:
        failing.set()
        raise TimeoutError("slow disk")

    pipe = Threads(task_of(numbers(160, fail=fail)), 0, 1, 1)
    assert failing.wait(10)
    before = time.monotonic()
    pipe.close()
    assert not loader_threads()
    assert time.monotonic() - before < 0.9


def test_closing_in_a_worker_does_not_wait_for_itself(numbers: Any) -> None:
    pipes: list[ReadAhead] = []
    closed = threading.Event()

    def collate(batch: Any) -> Any:
        pipes[0].close()
        closed.set()
        return batch

    started = threading.Event()

    def fail(_: list[int]) -> None:
        started.wait(10)

    pipes.append(Threads(task_of(numbers(160, fail=fail), collate=collate), 0, 1, 1))
    started.set()
    assert closed.wait(10)
    for thread in loader_threads():
        thread.join(10)
    gc.collect()
    assert not loader_threads()

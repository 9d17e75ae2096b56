"""How a loader ends: closed, dropped, copied, or with a file that is cut under it."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError, PenstockError
from penstock.load.workers import ThreadWorkers
from penstock.testing import MemorySource

KINDS = ["threads", "processes"]


def loader(workers: int = 2, **options: Any) -> ps.Loader:
    return ps.Loader(
        ps.Sequential(MemorySource([{"id": i} for i in range(64)])), 4, rank=0, world=1, workers=workers, **options
    )


def ids(batches: Any, count: int) -> list[int]:
    return [i for batch in islice(batches, count) for i in next(iter(batch.values())).tolist()]


@pytest.mark.parametrize(("workers", "kind"), [(0, "threads"), (2, "threads"), (2, "processes")])
def test_after_close_nothing_is_read_and_the_state_is_there(workers: int, kind: Any) -> None:
    with loader(workers, worker_kind=kind) as opened:
        older, batches = iter(opened), iter(opened)
        assert ids(older, 1) + ids(batches, 2) == list(range(12))
    opened.close()
    for read in (lambda: next(batches), lambda: next(older), lambda: iter(opened)):
        with pytest.raises(ConfigError, match="the loader is closed"):
            read()
    assert not [one for one in threading.enumerate() if one.name.startswith("penstock-load-")]
    after = loader(workers, worker_kind=kind)
    after.load_state_dict(opened.state_dict())
    with after:
        assert ids(iter(after), 1) == list(range(12, 16))


def test_close_wakes_a_thread_that_waits_for_a_batch() -> None:
    begun, ends = threading.Event(), threading.Event()

    def slow(sample: Any) -> Any:
        begun.set()
        ends.wait(60)
        return sample

    opened = ps.Loader(ps.Sequential(ps.Map(MemorySource([{"id": 0}]), slow)), 1, rank=0, world=1)
    errors: list[Exception] = []

    def take() -> None:
        try:
            next(iter(opened))
        except PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    assert begun.wait(60)
    opened.close()
    thread.join(60)
    ends.set()
    assert isinstance(errors[0], ConfigError)


def test_two_threads_never_take_one_batch() -> None:
    begun, ends, taken = threading.Event(), threading.Event(), list[int]()

    def slow(sample: Any) -> Any:
        begun.set()
        ends.wait(60)
        return sample

    source = MemorySource([{"id": i} for i in range(8)])
    with ps.Loader(ps.Sequential(ps.Map(source, slow)), 1, rank=0, world=1) as opened:
        batches = iter(opened)
        thread = threading.Thread(target=lambda: taken.extend(ids(batches, 1)))
        thread.start()
        assert begun.wait(60)
        for other in (batches, iter(opened)):
            with pytest.raises(ConfigError, match="another thread is taking a batch"):
                next(other)
        ends.set()
        thread.join(60)
        assert taken + ids(batches, 2) == [0, 1, 2]


def test_a_copy_goes_on_from_the_same_place() -> None:
    opened = loader()
    batches = iter(opened)
    ids(batches, 3)
    copy: Any = pickle.loads(pickle.dumps(opened))
    with copy:
        assert (copy.step, copy.state_dict()) == (opened.step, opened.state_dict())
        assert ids(iter(copy), 2) == ids(batches, 2) == list(range(12, 20))
    assert ids(batches, 1) == list(range(20, 24))
    opened.close()


def test_a_loader_that_can_not_be_copied_says_why() -> None:
    with (
        loader(collate=lambda batch: batch) as opened,
        pytest.raises((pickle.PicklingError, AttributeError), match="lambda"),
    ):
        pickle.dumps(opened)


class Ring:
    def __init__(self, closed: Callable[[], None]) -> None:
        self.ring, self.closed = self, closed

    def __del__(self) -> None:
        self.closed()


def test_collected_by_its_own_worker_while_that_waits() -> None:
    """The garbage collector runs anywhere, so what it closes must need no lock that its thread may hold."""
    armed = threading.Event()

    def collect(frame: Any, event: str, argument: Any) -> None:
        inside = event == "call" and frame.f_code.co_qualname == "Condition.wait"
        waits = event == "c_call" and getattr(argument, "__name__", "") == "get"
        if armed.is_set() and (inside or waits):
            armed.clear()
            sys.setprofile(None)
            gc.collect()

    def producer(_worker: int, wait: Any) -> Any:
        sys.setprofile(collect)
        while not wait(0.05):
            pass
        yield None

    producer.place = lambda worker, made: ""  # type: ignore[attr-defined]
    workers = ThreadWorkers(producer, 1, 1, None)  # type: ignore[arg-type]
    thread = workers._threads[0]
    gc.disable()
    try:
        Ring(workers.close)
        del workers
        armed.set()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()


def rows(folder: Path) -> Path:
    with ps.create(folder / "rows.pbin", format="pbin", token_bytes=2, eos_id=0) as out:
        out.write({"tokens": [1] * 4_000_000 + [0]})
    return folder / "rows.pbin"


def test_a_mapped_file_that_is_cut_is_an_error_where_processes_read(tmp_path: Path) -> None:
    path = rows(tmp_path)
    stream = ps.Sequential(ps.Chunk(1000)(ps.open(path)))
    with ps.Loader(stream, 4, rank=0, world=1, workers=1, prefetch=1, worker_kind="processes") as opened:
        batches = iter(opened)
        next(batches)
        os.truncate(path, 4096)
        with pytest.raises(PenstockError, match=r"SIGBUS.*was truncated"):
            ids(batches, 2000)
        assert opened.step < 1000

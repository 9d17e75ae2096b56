"""What went wrong with workers once, or could: each must be an error in its place, or no error at all."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import ProcessWorkers

import penstock as ps
from penstock.errors import ConfigError
from penstock.testing import MemorySource

KINDS = ["threads", "processes"]


def samples(count: int, width: int = 4) -> MemorySource:
    return MemorySource([{"id": i, "value": np.full(width, i, np.int32)} for i in range(count)])


def loader(source: Any, kind: Any, **options: Any) -> ps.Loader:
    return ps.Loader(ps.Sequential(source), 4, rank=0, world=1, worker_kind=kind, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [4, 3_000, 30_000])
def test_metrics_from_another_thread_take_nothing(kind: str, width: int) -> None:
    ld = loader(samples(64, width), kind, workers=2)
    done = threading.Event()
    asked: list[int] = []

    def ask() -> None:
        while not done.is_set():
            asked.append(ld.metrics().ready)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    batches = iter(ld)
    next(batches)
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 400):
            first = number * 4 % 64
            assert next(batches)["id"].tolist() == list(range(first, first + 4))
    finally:
        done.set()
        for thread in threads:
            thread.join()
        batches.close()
    assert asked


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_in_a_forked_process_take_nothing(kind: str) -> None:
    ld = loader(samples(64), kind, workers=2)
    batches = iter(ld)
    for number in range(8):
        if number % 2:
            pid = os.fork()
            if not pid:
                ld.metrics()
                os._exit(0)
            os.waitpid(pid, 0)
            time.sleep(0.02)
        assert next(batches)["id"].tolist() == list(range(4 * number, 4 * number + 4))
    batches.close()


@dataclasses.dataclass
class HalfMade:
    ids: Any
    later: Any = dataclasses.field(init=False)


class Odd:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("nobody knows")


def half_made(batch: Any) -> HalfMade:
    return HalfMade(batch["id"])


def odd(batch: Any) -> Any:
    return {**batch, "odd": Odd()}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_whose_size_can_not_be_told_is_a_batch(workers: int) -> None:
    assert next(iter(loader(samples(8), "threads", workers=workers, collate=half_made))).ids.tolist() == [0, 1, 2, 3]
    assert next(iter(loader(samples(8), "threads", workers=workers, collate=odd)))["id"].tolist() == [0, 1, 2, 3]


def test_sparse_tensors_are_batches() -> None:
    import torch

    def sparse(batch: Any) -> Any:
        return {**batch, "sparse": torch.eye(4).to_sparse()}

    for workers in (0, 1):
        assert next(iter(loader(samples(8), "threads", workers=workers, collate=sparse)))["sparse"].is_sparse


def test_time_limits_of_the_programs_own_sockets_are_not_the_loaders(functions: Any) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.2)
    try:
        workers = ProcessWorkers(functions.Sleepy(0.6), 1, 1, 30.0)
        assert [workers.take(0) for _ in range(3)] == [0, 1, 2]
        time.sleep(0.5)
        assert workers.take(0) == 3
        workers.close()
    finally:
        socket.setdefaulttimeout(before)


def cropped(batch: Any) -> Any:
    return {**batch, "crop": [np.zeros((2_000_000,), np.uint8)[:10] for _ in range(2)]}


def of_objects(batch: Any) -> Any:
    return {**batch, "bytes": np.array([b"a" * 1_000_000] * 2, dtype=object)}


@pytest.mark.parametrize("collate", [cropped, of_objects])
def test_views_and_objects_count_for_what_they_keep(collate: Any) -> None:
    ld = loader(samples(64), "threads", workers=1, prefetch=3, collate=collate)
    batches = iter(ld)
    next(batches)
    time.sleep(0.3)
    assert ld.metrics().ready == 3
    batches.close()


def test_kept_batches_keep_no_file_descriptors() -> None:
    ld = loader(samples(64, 30_000), "processes", workers=1)
    batches = iter(ld)
    kept = [next(batches)]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept += [next(batches) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    batches.close()
    for number, batch in enumerate(kept):
        assert (batch["value"][:, 7] == np.arange(4) + number * 4 % 64).all()
        batch["value"][:] = 0
    assert _mapped_files() >= 51
    del kept, batch
    assert _mapped_files() == 0


def _mapped_files() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:penstock")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout_seconds", [1e300, float("inf"), 3e6])
def test_long_time_limits(kind: str, timeout_seconds: float) -> None:
    batches = iter(loader(samples(8), kind, workers=1, timeout_seconds=timeout_seconds))
    assert next(batches)["id"].tolist() == [0, 1, 2, 3]
    batches.close()


def test_a_worker_that_is_gone_is_an_error_whatever_becomes_of_signals(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, time
            import numpy as np
            import penstock as ps
            import penstock.errors
            from penstock.testing import MemorySource

            if __name__ == "__main__":
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                source = MemorySource([{"value": np.zeros(200_000, np.uint8)} for _ in range(8)])
                batches = iter(ps.Loader(ps.Sequential(source), 1, rank=0, world=1, worker_kind="processes", workers=1))
                next(batches)
                time.sleep(0.3)
                os.kill(batches._running._workers._lines[0].process.pid, signal.SIGKILL)
                time.sleep(0.3)
                try:
                    for _ in range(100):
                        next(batches)
                except ps.errors.PenstockError as error:
                    print("told:", error)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "told:" in done.stdout
    assert "has died" in done.stdout


def test_a_forked_process_that_can_start_none_is_told_so() -> None:
    ld = loader(samples(8), "processes", workers=1)
    batches = iter(ld)
    next(batches)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            next(iter(ld))
            os.write(writing, b"a batch")
        except ConfigError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked process" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    batches.close()


def test_what_a_forked_process_writes_to_a_batch_is_its_own() -> None:
    batches = iter(loader(samples(8, 30_000), "processes", workers=1))
    batch = next(batches)
    before = batch["value"].sum()
    pid = os.fork()
    if not pid:
        batch["value"][:] = 0
        os._exit(0)
    os.waitpid(pid, 0)
    assert batch["value"].sum() == before
    batches.close()


def test_batches_leave_no_garbage() -> None:
    batches = iter(loader(samples(64, 30_000), "processes", workers=1))
    for _ in range(20):
        next(batches)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(100):
            next(batches)
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()
    batches.close()


def test_workers_end_with_a_trainer_that_has_forked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, time
            import penstock as ps
            from penstock.testing import MemorySource

            if __name__ == "__main__":
                source = MemorySource([{"id": i} for i in range(64)])
                batches = iter(ps.Loader(ps.Sequential(source), 4, rank=0, world=1, worker_kind="processes", workers=2))
                next(batches)
                child = os.fork()
                if not child:
                    time.sleep(30)
                    os._exit(0)
                workers = [line.process.pid for line in batches._running._workers._lines]
                print(child, *workers, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        child, *workers = map(int, trainer.stdout.readline().split())
    try:
        deadline = time.monotonic() + 20
        while any(map(_lives, workers)):
            assert time.monotonic() < deadline, "they outlive their trainer"
            time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- interrupts and errors after a batch was made ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["finish", "on_metrics"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_whose_last_touch_fails_comes_again(where: str, workers: int) -> None:
    calls: list[int] = []

    def fails_once(given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return given

    options: dict[str, Any] = {where: fails_once} | ({"metrics_every": 1} if where == "on_metrics" else {})
    ld = loader(samples(64), "threads", workers=workers, **options)
    batches = iter(ld)
    found = [next(batches)["id"][0] for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert ld.consumed == 8
    found += [next(batches)["id"][0] for _ in range(4)]
    assert found == [0, 4, 8, 12, 16, 20]
    assert ld.consumed == 24
    batches.close()


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_anywhere_keeps_place_and_batches_together(line: int) -> None:
    """A signal between any two lines of the iterator: what comes next is what the state says."""
    ld = loader(samples(640), "threads", workers=1)
    batches = iter(ld)
    for _ in range(3):
        next(batches)
    code = type(batches).__next__.__code__
    seen = [0]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == line + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        next(batches)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    for _ in range(3):
        consumed = ld.consumed
        assert next(batches)["id"].tolist() == [(consumed + i) % 640 for i in range(4)]
    batches.close()

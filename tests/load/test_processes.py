from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.load.processes import ProcessWorkers
from penstock.testing import MemorySource


def samples(count: int, width: int = 4) -> MemorySource:
    return MemorySource([{"id": i, "value": np.full(width, i, np.int32), "name": f"s{i}"} for i in range(count)])


def loader(source: Any, **options: Any) -> ps.Loader:
    return ps.Loader(source, 8, rank=0, world=1, tail="drop", worker_kind="processes", **options)


@pytest.mark.parametrize("width", [4, 50_000])
def test_the_batches_are_those_of_threads(width: int, functions: Any) -> None:
    source = ps.Map(samples(64, width), functions.doubled)
    expected = list(ps.Loader(source, 8, rank=0, world=1, tail="drop", workers=0))
    found = list(loader(source, workers=3))
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected, strict=True):
        assert one["name"] == other["name"]
        np.testing.assert_array_equal(one["value"], other["value"])
        one["value"][:] = 0  # memory of the trainer's own


def test_nothing_stays_open() -> None:
    source = samples(64, 50_000)
    list(loader(source, workers=2))
    gc.collect()  # what earlier tests left must not go in between
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        list(loader(source, workers=2))
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_an_error_comes_in_its_place_and_says_where(functions: Any) -> None:
    batches = iter(loader(ps.Map(samples(64), functions.fails_at_21), workers=2))
    next(batches), next(batches)
    with pytest.raises(Corrupt, match=r"x\.bin") as caught:
        next(batches)
    assert caught.value.offset_bytes == 21
    assert any("fails_at_21" in note for note in caught.value.__notes__)
    assert any("loader process 0" in note for note in caught.value.__notes__)


def test_a_killed_worker_is_an_error_and_the_place_is_kept(functions: Any) -> None:
    ld = loader(ps.Map(samples(64), functions.dies_at_21), workers=2)
    batches = iter(ld)
    next(batches), next(batches)
    with pytest.raises(PenstockError, match="SIGKILL"):
        next(batches)
    assert ld.step == 2
    with pytest.raises(PenstockError, match="SIGKILL"):
        next(batches)
    ld.seek(3)
    assert next(batches)["id"].tolist() == list(range(24, 32))
    batches.close()


def test_a_worker_killed_from_outside(functions: Any) -> None:
    workers = ProcessWorkers(functions.Endless(), 1, 1, 60.0)
    assert workers.take(0) == 0
    os.kill(workers._lines[0].process.pid, signal.SIGKILL)
    with pytest.raises(PenstockError, match="has died"):
        [workers.take(0) for _ in range(1000)]
    workers.close()


@pytest.mark.parametrize(("size_bytes", "expected"), [(1 << 20, 2), (1 << 15, 8), (8, 64)])
def test_how_far_a_process_is_ahead(tmp_path: Path, size_bytes: int, expected: int, functions: Any) -> None:
    told = tmp_path / "made"
    workers = ProcessWorkers(functions.Telling(size_bytes, str(told)), 1, 2, 60.0)
    try:
        assert _settled(told) == 2, "before the first is taken"
        workers.take(0)
        # A socket of the system may hold less than what may be ahead.
        assert expected // 2 <= _settled(told) <= expected + 2
        for _ in range(3 * expected):
            assert len(workers.take(0)) == size_bytes
        # A worker that is far ahead sleeps until half of it is taken.
        assert 3 * expected < _settled(told) <= 4 * expected + 2
    finally:
        workers.close()


def _settled(path: Path) -> int:
    """The size of a file that has not grown for a while."""
    before, deadline = -1, time.monotonic() + 30
    while time.monotonic() < deadline:
        size = path.stat().st_size if path.exists() else 0
        if size and size == before:
            break
        before = size
        time.sleep(0.3)
    return before


def test_many_results_of_all_sizes_come_whole_and_in_order(functions: Any) -> None:
    workers = ProcessWorkers(functions.Sizes(), 2, 2, 60.0)
    for number in range(400):
        for worker in range(2):
            size = functions.size_of(number, worker)
            found, text = workers.take(worker)
            assert text == f"{worker}/{number}"
            assert found.shape == (size,)
            assert (found == number % 251).all()
            found[:] = 0  # the trainer's own
    workers.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_hanging_worker_is_an_error_in_time(kind: Any, functions: Any) -> None:
    source = ps.Map(samples(64), functions.hangs_at_21 if kind == "processes" else functions.hangs_a_little_at_21)
    ld = ps.Loader(
        source, 8, rank=0, world=1, tail="drop", worker_kind=kind, workers=1, prefetch=1, timeout_seconds=0.5
    )
    batches = iter(ld)
    next(batches), next(batches)
    with pytest.raises(PenstockError, match=r"no batch for 0\.5 s"):
        next(batches)


def test_what_can_not_be_moved_is_refused_before_a_process_starts() -> None:
    with pytest.raises(ConfigError, match="lambda"):
        next(iter(loader(ps.Map(samples(64), lambda sample: sample, name="x"), workers=2)))


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown worker_kind"):
        ps.Loader(ps.Sequential(samples(8)), 8, rank=0, world=1, worker_kind="fibers")  # pyright: ignore


SCRIPT = """
import sys, time
import penstock as ps
from penstock.testing import MemorySource

def slow(sample):
    time.sleep({sleep})
    return sample

def main():
    source = ps.Map(MemorySource([{{"id": i}} for i in range(64)]), slow)
    for batch in ps.Loader(source, 8, rank=0, world=1, tail="drop", worker_kind="processes", workers=2):
        print(batch["id"][0], flush=True)

{run}
"""


def script(tmp_path: Path, run: str, sleep: float = 0) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT).format(run=run, sleep=sleep))
    return path


def test_a_script_with_a_main_guard_runs(tmp_path: Path) -> None:
    path = script(tmp_path, 'if __name__ == "__main__":\n    main()')
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(i) for i in range(0, 64, 8)]


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    path = script(tmp_path, "main()")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "if __name__ == '__main__':" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_trainer(tmp_path: Path, number: signal.Signals) -> None:
    path = script(tmp_path, 'if __name__ == "__main__":\n    main()', sleep=0.05)
    process = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        started = time.monotonic()
        process.send_signal(number)
        process.wait(30)
        assert time.monotonic() - started < 10
    deadline = time.monotonic() + 20
    while living := [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs(pid, str(path))]:
        assert time.monotonic() < deadline, living
        time.sleep(0.05)


def _runs(pid: str, path: str) -> bool:
    try:
        return path in Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return False


@pytest.mark.parametrize("given", [None, "2"])
def test_torch_computes_in_one_thread_of_a_worker(given: str | None) -> None:
    """Unless the caller says otherwise. The server of processes is another one for each environment."""
    script = (
        "import penstock as ps, sys\n"
        "from penstock.testing import MemorySource\n"
        "import process_functions as functions\n"
        "if __name__ == '__main__':\n"
        "    source = ps.Map(MemorySource([{'id': i} for i in range(4)]), functions.with_torch_threads, name='t-1')\n"
        "    loader = ps.Loader(source, 4, rank=0, world=1, tail='drop', worker_kind='processes', workers=1)\n"
        "    print(next(iter(loader))['threads'].tolist())\n"
        "    loader.close()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    environment.pop("OMP_NUM_THREADS", None)
    environment |= {} if given is None else {"OMP_NUM_THREADS": given}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout == f"{[int(given or 1)] * 4}\n", done.stderr

"""Executors: order, errors, and deaths."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import operator
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.shared_work import Counting

import penstock as ps
from penstock.abc import Executor
from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.executors import EXECUTORS, InlineExecutor, ProcessExecutor, make_executor, processes
from penstock.prepare import pack
from penstock.testing import ExecutorSuite

GONE_SECONDS = 20


@pytest.fixture(params=["inline", "processes"])
def either(request: pytest.FixtureRequest) -> Iterator[InlineExecutor | ProcessExecutor]:
    with InlineExecutor() if request.param == "inline" else ProcessExecutor(2) as made:
        yield made


class TestInline(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with make_executor("inline", 1) as made:
            yield made


class TestProcesses(ExecutorSuite):
    kills = sends = True

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with make_executor("processes", 2) as made:
            yield made


class TestChecked(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with make_executor(Counting(), 1) as made:
            yield made


def test_a_first_task_before_all_others(either: InlineExecutor | ProcessExecutor) -> None:
    assert either.begin(operator.neg, 5)() == -5
    with pytest.raises((PrepareError, TypeError)):
        either.begin(operator.neg, "x")()
    assert list(either.map(abs, [-1, -2, -3])) == [1, 2, 3]


def test_the_earliest_error_is_raised_after_what_came_before(either: InlineExecutor | ProcessExecutor) -> None:
    results = either.map(int, ["1", "2", "x", "4", "y"])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises((PrepareError, ValueError), match=r"invalid literal.*'x'"):
        next(results)


def test_errors_keep_their_kind_and_place() -> None:
    with make_executor("processes", 1) as executor, pytest.raises(FileNotFoundError) as error:
        list(executor.map(os.stat, ["/nowhere/at/all"]))
    assert error.value.filename == "/nowhere/at/all"
    assert any("In the worker" in note for note in error.value.__notes__)


def test_a_worker_that_is_killed_is_replaced() -> None:
    with make_executor("processes", 2) as executor:
        pids = set(executor.map(operator.call, [os.getpid] * 8))
        assert len(pids) == 2
        results = executor.map(time.sleep, [0, 0, 0.5, 0.5, 0.5])
        next(results)
        os.kill(max(pids), signal.SIGKILL)
        assert list(results) == [None] * 4
        pids |= set(executor.map(operator.call, [os.getpid] * 8))
        assert len(pids) == 3
    assert all(is_gone(pid) for pid in pids)


class _Waker(logging.Handler):
    """Lets a worker go on that the log says is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        os.kill(int(self.said[-1].rpartition(" ")[2].strip("`")), signal.SIGCONT)


def test_a_worker_that_is_stopped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.05)
    waker, log = _Waker(), logging.getLogger(processes.__name__)
    log.addHandler(waker)
    try:
        with make_executor("processes", 2) as executor:
            assert executor.begin(signal.raise_signal, signal.SIGSTOP)() is None
            pids = set(executor.map(operator.call, [os.getpid] * 8))
            assert list(executor.map(signal.raise_signal, [signal.SIGSTOP] * 3)) == [None] * 3
    finally:
        log.removeHandler(waker)
    assert len(waker.said) >= 4
    assert all(re.fullmatch(r"worker process \d+ is stopped and .*: `kill -CONT \d+`", one) for one in waker.said)
    assert {int(one.split()[2]) for one in waker.said} <= pids


def test_workers_that_never_start_are_an_error_and_no_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aborts.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(tmp_path)
    for module, said in (("no.such.module", "No module named 'no'"), ("aborts", "3 workers.*before their first task")):
        with make_executor("processes", 2, preload=[module]) as executor, pytest.raises(PrepareError, match=said):
            list(executor.map(operator.neg, [1, 2, 3]))
        with make_executor("processes", 2, preload=[module]) as executor, pytest.raises(PrepareError, match=said):
            cast("ProcessExecutor", executor).begin(operator.neg, 1)()


def test_a_first_task_that_kills_its_workers_is_named() -> None:
    with ProcessExecutor(2) as executor:
        with pytest.raises(PrepareError, match=r"a task killed 3 workers.*the first task \(7\)"):
            executor.begin(os._exit, 7)()
        assert list(executor.map(operator.neg, [1, 2])) == [-1, -2]


def fork_and_die(status: int) -> None:
    if os.fork() == 0:
        time.sleep(20)
    os._exit(status)


def test_a_child_that_a_dead_worker_leaves_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forking.py").write_text(f"import os, time\n\n{inspect.getsource(fork_and_die)}")
    monkeypatch.syspath_prepend(tmp_path)
    started = time.monotonic()
    with make_executor("processes", 1) as executor, pytest.raises(PrepareError, match="killed 3 workers"):
        list(executor.map(importlib.import_module("forking").fork_and_die, [1]))
    assert time.monotonic() - started < 15, "the death was noticed only when the child ended"


def test_tasks_that_all_kill_end_the_work_soon() -> None:
    with make_executor("processes", 1) as executor, pytest.raises(PrepareError, match="tasks, each of which killed 3"):
        list(executor.map(os._exit, range(10**6)))


def test_a_map_that_is_left_is_never_a_short_one() -> None:
    with make_executor("processes", 2) as executor:
        left = executor.map(operator.neg, range(100))
        assert next(left) == 0
        assert list(executor.map(operator.neg, range(100))) == [-n for n in range(100)]
        with pytest.raises(PrepareError, match="was interrupted"):
            list(left)


def test_closing_ends_tasks_under_way() -> None:
    started = time.monotonic()
    with make_executor("processes", 2) as executor:
        pids = set(executor.map(operator.call, [os.getpid] * 8))
        executor.map(time.sleep, [60, 60])
    assert time.monotonic() - started < 30
    assert all(is_gone(pid) for pid in pids)


def test_no_worker_outlives_a_killed_caller(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from penstock.executors import make_executor\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from told import tell\n"
        "executor = make_executor('processes', 3)\n"
        "list(executor.map(tell, [sys.argv[1]] * 12))\n"
        "executor.map(time.sleep, [120] * 3)\n"
        "print('ready', flush=True)\n"
        "time.sleep(120)\n"
    )
    (tmp_path / "told.py").write_text(
        "import os, time\n"
        "def tell(folder):\n"
        "    open(f'{folder}/{os.getpid()}.pid', 'w').close()\n"
        "    time.sleep(0.05)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
        assert len(pids) == 3
        caller.kill()
    assert all(is_gone(pid) for pid in pids)


def test_a_worker_whose_caller_is_gone_before_it_serves_says_nothing() -> None:
    code = (
        "from multiprocessing.connection import Pipe\n"
        "from penstock.executors.worker import main\n"
        "ours, theirs = Pipe()\n"
        "ours.close()\n"
        "main([theirs.fileno()], [])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_no_guard_is_needed_around_the_callers_main(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from penstock.executors import make_executor\n"
        "print('once')\n"
        "with make_executor('processes', 2) as executor:\n"
        "    print(list(executor.map(abs, [-1, -2])))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "once\n[1, 2]\n"


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="unknown executor"):
        make_executor("rays", 2)
    for name in EXECUTORS:
        with pytest.raises(ConfigError, match="at least one worker is needed"):
            make_executor(name, 0)


def is_gone(pid: int) -> bool:
    """Whether a process ends soon."""
    stop = time.monotonic() + GONE_SECONDS
    while time.monotonic() < stop:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.01)
                continue
        return True
    return False


def test_an_executor_of_ones_own_packs_and_converts(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(50)))
    tokenizer = Path(__file__).parents[1] / "golden" / "modalities" / "tokenizers" / "bpe2" / "tokenizer.json"
    own = Counting()
    given: dict[str, Any] = {"tokenizer": tokenizer, "eos": "<|eod|>"}
    for executor, name in ((own, "own.pbin"), ("inline", "inline.pbin")):
        pack(lines, tmp_path / name, executor=executor, task_bytes=300, **given)
    assert own.num_tasks > 3
    assert (tmp_path / "own.pbin").read_bytes() == (tmp_path / "inline.pbin").read_bytes()
    own.num_tasks = 0
    with ps.create(tmp_path / "mds", format="mds", columns={"n": "int"}) as writer:
        for number in range(40):
            writer.write({"n": number})
    ps.convert(tmp_path / "mds", tmp_path / "out", to="mds", group_rows=10, workers=2, executor=own)
    assert own.num_tasks >= 4
    assert [sample["n"] for sample in ps.open(tmp_path / "out")] == list(range(40))


@pytest.mark.parametrize("options", [{"workers": 1, "group_rows": 10}, {"workers": 2}])
def test_an_executor_of_ones_own_gets_little_work_too(tmp_path: Path, options: dict[str, Any]) -> None:
    own = Counting()
    samples = [{"n": number} for number in range(40)]
    ps.convert(iter(samples), tmp_path / "in", to="mds", executor="inline")
    ps.convert(tmp_path / "in", tmp_path / "out", to="mds", executor=own, **options)
    assert own.num_tasks >= 2  # at least a group that is written, and a range that is read back
    with pytest.raises(ConfigError, match=r"unknown executor.*Did you mean 'inline'"):
        ps.convert(tmp_path / "in", tmp_path / "other", to="mds", executor="inlin", **options)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_an_executor_of_ones_own_makes_tokens_too(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(5, dtype=np.uint16)})
    with pytest.raises(ConfigError, match=r"unknown executor.*Did you mean 'inline'"):
        ps.convert(tmp_path / "a.pbin", tmp_path / "b.zarr", executor="inlin")
    assert not (tmp_path / "b.zarr").exists()
    own = Counting()
    ps.convert(tmp_path / "a.pbin", tmp_path / "b.zarr", executor=own)
    assert own.num_tasks >= 1
    assert ps.open(tmp_path / "b.zarr")[0]["tokens"].tolist() == [0, 1, 2, 3, 4]


def test_an_executor_by_the_name_of_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, tuple[str, ...]]] = []

    @contextlib.contextmanager
    def make(workers: int, preload: Sequence[str]) -> Iterator[Counting]:
        made.append((workers, tuple(preload)))
        yield Counting()

    point = types.SimpleNamespace(name="mine", load=lambda: make)
    groups = {"penstock.executors": [point]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: groups.get(group, []))
    with make_executor("mine", 3, ["json"]) as executor:
        assert list(executor.map(str, [1, 2])) == ["1", "2"]
    assert made == [(3, ("json",))]
    with pytest.raises(ConfigError, match=r"inline \| processes \| ray \| mine.*Did you mean 'mine'"):
        make_executor("minee", 1)


class Given:
    """An executor that breaks the law of results."""

    def __init__(self, give: Callable[[list[Any]], Iterable[Any]]) -> None:
        self.give = give

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Any:
        return self.give([fn(task) for task in tasks])


@pytest.mark.parametrize(
    ("give", "found"),
    [
        (lambda made: made[::-1], "task 3 after 0 results"),
        (lambda made: made[:-1], "3 results"),
        (lambda made: [], "0 results"),
        (lambda made: [*made, made[-1]], "task 3 after 4 results"),
        (lambda made: [None] * len(made), "NoneType for task 0"),
    ],
)
def test_results_that_are_not_those_of_the_tasks_are_refused(
    give: Callable[[list[Any]], Iterable[Any]], found: str
) -> None:
    with make_executor(Given(give), 1) as executor, pytest.raises(PrepareError, match=f"Given.*{found}"):
        list(executor.map(operator.neg, range(4)))


def test_tasks_that_an_executor_never_takes_are_missed() -> None:
    class FirstOnly:
        def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            yield fn(next(iter(tasks)))

    with make_executor(FirstOnly(), 1) as executor, pytest.raises(PrepareError, match=r"FirstOnly.*1 results"):
        list(executor.map(operator.neg, range(4)))


def test_a_list_of_results_and_a_pool_of_threads_are_executors() -> None:
    with make_executor(Given(lambda made: made), 1) as executor:
        assert list(executor.map(operator.neg, range(4))) == [0, -1, -2, -3]
    with ThreadPoolExecutor(3) as pool, make_executor(cast("Executor", pool), 1) as executor:
        assert list(executor.map(operator.neg, range(4))) == [0, -1, -2, -3]


def test_errors_of_tasks_are_answers_which_no_engine_runs_again() -> None:
    runs: list[int] = []

    def fails(number: int) -> int:
        runs.append(number)
        raise Corrupt("the input is damaged", path="a.gz")

    class Stubborn:
        def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            for task in tasks:
                for _ in range(3):
                    with contextlib.suppress(Corrupt):
                        yield fn(task)
                        break

    with make_executor(Stubborn(), 1) as executor, pytest.raises(Corrupt, match=r"a\.gz"):
        list(executor.map(fails, [7, 8]))
    assert runs == [7]


def test_an_engine_that_fails_is_named() -> None:
    class Broken:
        def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            yield fn(next(iter(tasks)))
            raise BrokenProcessPool("a process was terminated abruptly")

    with make_executor(Broken(), 1) as executor:
        results = executor.map(operator.neg, [1, 2])
        assert next(results) == -1
        with pytest.raises(PrepareError, match=r"executor Broken failed.*BrokenProcessPool: a process"):
            next(results)


def test_an_order_that_is_not_kept_packs_nothing(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(50)))
    tokenizer = Path(__file__).parents[1] / "golden" / "modalities" / "tokenizers" / "bpe2" / "tokenizer.json"
    backwards = Given(lambda made: made[::-1])
    with pytest.raises(PrepareError, match="in order"):
        pack(lines, tmp_path / "a.pbin", executor=backwards, task_bytes=300, tokenizer=tokenizer, eos="<|eod|>")
    assert not (tmp_path / "a.pbin").exists()


@pytest.mark.parametrize("given", [3, None, object(), Counting])
def test_what_is_no_executor_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="not an executor"):
        make_executor(given, 1)

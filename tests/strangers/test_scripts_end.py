"""Scripts as processes: each ends with its own exit status, and what stands on stderr is its own.

Those that leave a thread behind wait for it first. All run beside one another: most of the time is waiting.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
WATCHDOG_S = 180.0
AT_ONCE = 8

OWN_TRACE = r"Traceback \(most recent call last\):\n(  .*\n)+ValueError: the script's own\n"
INTERRUPT = r"Traceback \(most recent call last\):\n(  .*\n)+KeyboardInterrupt\n"
CLOSED = "the loader is closed"


def left(function: str) -> str:
    """The one line about a thread that was left behind."""
    return (
        rf"penstock: thread penstock-load-0 at positions 8 to 11, in [\w.]*{function} \(.*\.py:\d+\): "
        r"not finished after 10 s; exiting without it\n"
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A script, how it should end, and what is done to it once it says "ready".

    Attributes:
        name: of the script.
        status: as `Popen.returncode` tells it.
        out: lines on stdout, besides that of the exit handler at the end.
        err: a regular expression for all of stderr.
        signals: sent to it, and to its group where `group`, one after another.
        ran: whether its exit handlers run.
        python: options of the interpreter; the script is its standard input with `-i`.
        ordered: whether the lines come in this order.
    """

    name: str
    status: int
    out: Sequence[str] = ("done",)
    err: str = ""
    signals: Sequence[signal.Signals] = ()
    ran: bool = True
    group: bool = True
    python: Sequence[str] = field(default=())
    ordered: bool = True


CASES = [
    # Those that take longest come first.
    Case("handler_needs_a_lock", 2, ("done", "needs the lock", "another handler ran"),
         left("holds_a_lock") + r"penstock: an exit handler did not finish after 10 s, in needs .*; skipping it\n"),
    Case("comes_back_too_late", 4, err=left("wait")),
    Case("sample_sleeps", 5, err=left("sleeps")),
    Case("sample_spins_in_cpp", 1, err="the script's own\n" + left("minutes_in_torch")),
    Case("sample_holds_pythons_lock", 0),
    Case("python_never_ends", 0),
    Case("threads_break", 0),
    Case("threads_no_close", 0),
    Case("threads_sys_exit", 3),
    Case("threads_exception", 1, (), OWN_TRACE),
    Case("torch_loader_second", 0),
    Case("closed", 0, (CLOSED, CLOSED, "2 8")),
    Case("processes_break", 0),
    Case("processes_sleeping", 6),
    Case("processes_exception", 1, (), OWN_TRACE),
    Case("kept_to_the_end", 1, ("hook",), ran=False),
    Case("processes_forked", 5, ("handlers ran", "done")),
    Case("energon", 7, (CLOSED, "done")),
    Case("streaming", 8, (CLOSED, CLOSED, "the dataset is closed", "the dataset is closed", "done")),
    Case("jax_loader", 0, (CLOSED, "done")),
    Case("forkserver", 9),
    Case("spawned", 9, ("handlers ran", "done")),
    Case("forked_child", 5, ("handlers ran", "done")),
    Case("interrupted", -2, ("ready",), INTERRUPT, (signal.SIGINT,)),
    Case("interrupted_processes", -2, ("ready",), INTERRUPT, (signal.SIGINT,)),
    Case("interrupted_twice", -2, ("ready",), INTERRUPT + r"penstock: .*\n", (signal.SIGINT, signal.SIGINT)),
    Case("interrupted", -15, ("ready",), "", (signal.SIGTERM,), ran=False),
    Case("interrupted_processes", -15, ("ready",), "", (signal.SIGTERM,), ran=False, group=False),
    Case("terminated_by_handler", 4, ("ready",), "", (signal.SIGTERM,)),
    Case("interactive", 0, err=r"(.*\n)*ValueError: the script's own\n(.*\n)*", python=("-i", "-q")),
    Case("prefetched", 5, ("done", "few were read")),
    Case("remote_hangs", 3, ("done true",)),
    Case("threads_being_started", 4),
    Case("writer_left_open", 2),
    Case("users_thread", 2, ("done", "the thread is done")),
    Case("users_join_interrupted", 2, ("interrupted",)),
    Case("users_threads_read", 2, ("the first has read all", "the late one has read all", "the pool's has read all",
                                   "the second has read all"), ordered=False),
    Case("users_thread_first", 2, ("[12, 13, 14, 15]",)),
    Case("exit_handler_first", 2, ("[12, 13, 14, 15]",)),
    Case("exit_handler_reads", 3, ("[8, 9, 10, 11] [12, 13, 14, 15] 16", "[0, 1, 2, 3]")),
]  # fmt: skip


def ended(case: Case) -> tuple[int, str, str]:
    """Run a script: (exit status, stdout, stderr)."""
    script = SCRIPTS / f"{case.name}.py"
    interactive = "-i" in case.python
    with script.open() as given, subprocess.Popen(
        [sys.executable, *case.python, *(() if interactive else (script.name,))],
        cwd=SCRIPTS,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdin=given if interactive else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            first = process.stdout.readline() if case.signals and process.stdout else ""
            send: Callable[[int, int], None] = os.killpg if case.group else os.kill
            for number in case.signals:
                send(process.pid, number)
                with_pause(process)
            out, err = process.communicate(timeout=WATCHDOG_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, first + out, err


def with_pause(process: subprocess.Popen[str]) -> None:
    """Give it the time to take a signal before the next one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.5)


@pytest.fixture(scope="module")
def running() -> Iterator[list[Future[tuple[int, str, str]]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield [pool.submit(ended, case) for case in CASES]


@pytest.mark.xdist_group("scripts_end")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.name}-{case.status}" for case in CASES])
def test_a_script_ends_with_its_own_status(number: int, running: list[Future[tuple[int, str, str]]]) -> None:
    case = CASES[number]
    found = running[number].result()
    if _problem(case, *found):  # beside others, a signal may come before a worker is where it should be: alone, then
        found = ended(case)
    assert _problem(case, *found) is None


def _problem(case: Case, status: int, out: str, err: str) -> str | None:
    lines = [*case.out, "handlers ran"] if case.ran else [*case.out]
    order = list if case.ordered else sorted
    right = (status, order(out.splitlines())) == (case.status, order(lines)) and re.fullmatch(case.err, err)
    return None if right else f"status {status}\n{out}\n{err}"

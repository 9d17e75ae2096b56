"""Checks in another context: in a forked child, in threads, on a pickled copy."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 60


def in_a_fork(check: Callable[[], None]) -> None:
    """Run `check` in a forked child; fail if it fails there, dies, or takes longer than a minute."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(LIMIT_S)
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the check failed in a forked child"


def in_threads(check: Callable[[int], None], count: int = 8) -> None:
    """Run `check(number)` in `count` threads at once; raise the error of one of them."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(check, number) for number in range(count)]:
            done.result()


def pickled_copy(value: T) -> T:
    """Return the copy that another process would get."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 (our own object, made on this line)

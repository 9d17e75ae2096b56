"""A child for what may hang, die or take all memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CEILING_BYTES = 512 << 20
WATCHDOG_S = 20
"""A watchdog, not a claim: on a busy machine anything may take seconds."""


class Ended:
    """How a child ended without a word."""

    def __init__(self, status: int) -> None:
        self.status = status

    def __repr__(self) -> str:
        return f"<the process ended with {self.status}>"


def _work(function: Callable[[], Any], ceiling_bytes: int, out: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + ceiling_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WATCHDOG_S)
    try:
        out.send(function())
    except BaseException as error:
        out.send(error)
    sys.stdout.flush()
    os._exit(0)


@pytest.fixture
def confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`confined(function)`: what it returns or raises in a child that may take 512 MB more than there are now."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache-of-attacks"))

    def run(function: Callable[[], Any], ceiling_bytes: int = CEILING_BYTES) -> Any:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_work, args=(function, ceiling_bytes, theirs))
        child.start()
        theirs.close()
        try:
            found = ours.recv()
        except EOFError:
            found = None
        child.join()
        return Ended(child.exitcode or 0) if found is None and child.exitcode else found

    return run

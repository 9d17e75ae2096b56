"""A line every 30 seconds of every command: how far it is, or how much it has read where it does not know that."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterator

SECONDS = 30.0

SERVING = frozenset({"mount", "view", "completion"})
"""Commands that wait for somebody, and have nothing to report."""


@contextlib.contextmanager
def ticking(tick: Callable[[], None], seconds: float = SECONDS) -> Generator[None]:
    """Call `tick` every so many seconds, from a thread of its own, as long as the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                tick()

    thread = threading.Thread(target=run, name="penstock-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_bytes() -> int:
    """Bytes that this process and its children have read so far; 0 where the system does not say."""
    return sum(map(_read_by, (os.getpid(), *_children())))


def _children() -> Iterator[int]:
    """Of the main thread, which starts all of them."""
    path = f"/proc/self/task/{os.getpid()}/children"
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        yield from map(int, file.read().split())


def _read_by(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            found = {name: int(count) for name, _, count in (line.partition(": ") for line in file)}
        return max(found["rchar"], found["read_bytes"])  # the second one has what was read through a map
    return 0

"""Where the time of a worker goes: functions over samples report to whoever reads the batch, on the same thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

_local = threading.local()


@contextmanager
def collecting(seconds: dict[str, float]) -> Generator[None]:
    """Adds up, by stage, what is reported on this thread."""
    outer, _local.seconds = getattr(_local, "seconds", None), seconds
    try:
        yield
    finally:
        _local.seconds = outer


def report(stage: str, seconds: float) -> None:
    """Add `seconds` to a stage, where somebody collects."""
    found: dict[str, float] | None = getattr(_local, "seconds", None)
    if found is not None:
        found[stage] = found.get(stage, 0.0) + seconds

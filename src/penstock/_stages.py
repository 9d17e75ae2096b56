"""Measurement of the time of a worker by stage: functions over samples report to the reader of the batch, by thread."""

from __future__ import annotations

import threading

_local = threading.local()


class Collecting:
    """Context manager that adds up the times reported on this thread, by stage: `with Collecting(seconds)`."""

    __slots__ = ("_outer", "_seconds")

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._outer: dict[str, float] | None = None

    def __enter__(self) -> None:
        self._outer, _local.seconds = getattr(_local, "seconds", None), self._seconds

    def __exit__(self, *_: object) -> None:
        _local.seconds = self._outer


def report(stage: str, seconds: float) -> None:
    """Add `seconds` to a stage, if times are collected on this thread."""
    found: dict[str, float] | None = getattr(_local, "seconds", None)
    if found is not None:
        found[stage] = found.get(stage, 0.0) + seconds

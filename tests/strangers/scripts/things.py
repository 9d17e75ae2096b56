"""What the scripts share: small data, and functions that keep a worker busy."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from typing import Any

import numpy as np

import penstock as ps
from penstock.testing import MemorySource

atexit.register(print, "handlers ran")
"""A program's own exit handler: it runs in every script."""

GATE = 8
"""Samples from here on are slow: the first batches come at once."""

lock = threading.Lock()
in_torch = threading.Event()
"""A worker is about to begin minutes of C++."""


def source() -> MemorySource:
    return MemorySource([{"id": i, "value": np.full(4, i, np.int32)} for i in range(64)])


def loader(fn: Any, **options: Any) -> ps.Loader:
    return ps.Loader(ps.Sequential(ps.Map(source(), fn)), 4, rank=0, world=1, **options)


def taken(batches: Any, count: int = 2) -> None:
    """Take some batches; then a worker is at a slow one."""
    for _ in range(count):
        next(batches)
    time.sleep(0.3)


def plain(sample: Any) -> Any:
    return sample


def short(sample: Any) -> Any:
    time.sleep(0.02)
    return sample


def sleeps(sample: Any) -> Any:
    if sample["id"] >= GATE:
        time.sleep(60)
    return sample


def busy_in_torch(sample: Any) -> Any:
    import torch

    square = torch.ones(500, 500)
    for _ in range(8):
        square = (square @ square).clamp(0, 1)
    return sample


def minutes_in_torch(sample: Any) -> Any:
    import torch

    if sample["id"] >= GATE:
        torch.set_num_threads(1)
        ones = torch.ones(4000, 4000)
        in_torch.set()
        torch.linalg.matrix_power(ones, (1 << 62) - 1)  # one call, in C++
    return sample


def holds_pythons_lock(sample: Any) -> Any:
    if GATE <= sample["id"] < GATE + 4:
        ctypes.PyDLL(None).usleep(500_000)
    return sample


def holds_a_lock(sample: Any) -> Any:
    if sample["id"] >= GATE:
        with lock:
            time.sleep(60)
    return sample


def never_ends_in_python(sample: Any) -> Any:
    while sample["id"] >= GATE:
        pass
    return sample

"""What worker processes run: they import this module by its name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

from penstock.errors import Corrupt
from penstock.load.workers import Wait
from penstock.testing.memory import MemorySource


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "value": sample["value"] * 2}


def fails_at_21(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 21:
        raise Corrupt("bad", path="x.bin", offset_bytes=21)
    return sample


def hangs_at_21(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 21:
        time.sleep(600)
    return sample


def dies_at_21(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 21:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def hangs_a_little_at_21(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 21:
        time.sleep(2)
    return sample


class Endless:
    def __call__(self, worker: int, wait: Wait) -> Any:
        return iter(range(10**9))


class Sleepy:
    """Numbers, each after a while."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def __call__(self, worker: int, wait: Wait) -> Any:
        for number in range(10**9):
            time.sleep(self.wait_s)
            yield number


class Telling:
    """Results of a size, endless; adds a byte to a file for each that it made."""

    def __init__(self, size_bytes: int, path: str) -> None:
        self.size_bytes = size_bytes
        self.path = path

    def __call__(self, worker: int, wait: Wait) -> Any:
        with open(self.path, "ab", buffering=0) as file:
            while True:
                file.write(b"+")
                yield bytes(self.size_bytes)


def size_of(number: int, worker: int) -> int:
    return (0, 7, 1000, 70_000, 65_536, 300_000, 20_000)[(number * 3 + worker) % 7]


class Sizes:
    """Arrays of many sizes, each with its number."""

    def __call__(self, worker: int, wait: Wait) -> Any:
        for number in range(10**9):
            yield np.full(size_of(number, worker), number % 251, np.uint8), f"{worker}/{number}"


class Failing(MemorySource):
    """Sample 9 can't be read."""

    def get_batch(self, indices: Any, /) -> Any:
        if 9 in np.asarray(indices).tolist():
            raise Corrupt("bad sample", path="a.bin", offset_bytes=9)
        return super().get_batch(indices)


class OwnError(Exception):
    """Can't be made from its text alone."""

    def __init__(self, what: str, where: int) -> None:
        super().__init__(f"{what} at {where}")


def raise_own_error(batch: Any) -> Any:
    raise OwnError("a bug", 7)


def raise_lookup_error(batch: Any) -> Any:
    raise LookupError("a bug")


def with_torch_threads(sample: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {**sample, "threads": torch.get_num_threads()}

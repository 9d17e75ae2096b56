"""What worker processes run: they import this module by its name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from penstock.errors import Corrupt
from penstock.load.workers import Wait


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

"""How near does the index of a gigabyte come to a bare search for line ends?"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import data
from harness import PYTHON, Options, Result, answer, child, row

TARGET = 0.5
_SCAN_BYTES = 1 << 20


def run(options: Options) -> Result:
    """Both in one child, in turn, over the same mapped file."""
    jsonl = data.short_lines(data.TEXT_BYTES if options.quick else data.LARGE_BYTES)
    pairs = child(PYTHON, __file__, "both", jsonl=jsonl, count=options.pairs(5))
    return Result(
        f"Raw index of {jsonl.stat().st_size / 1e9:.1f} GB in lines of 1 KB, not checked",
        [row("index written, newline scan", "MB/s", [tuple(pair) for pair in pairs], "numpy scan", TARGET)],
        ["The scan is `numpy.flatnonzero(block == 10)` over blocks of 1 MiB in one thread; it writes nothing."],
    )


def both(jsonl: str, count: int) -> list[tuple[float, float]]:
    """In a child: pairs of MB/s."""
    from penstock.prepare.raw import build_index

    scan(jsonl)
    pairs: list[tuple[float, float]] = []
    for _ in range(count):
        ours = _rate(jsonl, lambda: build_index(jsonl, validate=False, overwrite=True))
        pairs.append((ours, _rate(jsonl, lambda: scan(jsonl))))
    return pairs


def _rate(jsonl: str, work: Any) -> float:
    started = time.perf_counter()
    work()
    return os.path.getsize(jsonl) / 1e6 / (time.perf_counter() - started)


def scan(jsonl: str) -> int:
    """Line ends of a file, found by numpy."""
    import numpy as np

    with open(jsonl, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = np.frombuffer(mapped, np.uint8)
        blocks = (whole[start : start + _SCAN_BYTES] for start in range(0, len(whole), _SCAN_BYTES))
        return sum(len(np.flatnonzero(block == 10)) for block in blocks)


if __name__ == "__main__":
    answer(globals())

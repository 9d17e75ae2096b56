"""How close does indexing a gigabyte of JSONL come to a plain search for newlines?"""

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
    """Run both in turn in one child process, on the same memory-mapped file."""
    jsonl = data.short_lines(data.TEXT_BYTES if options.quick else data.LARGE_BYTES)
    pairs = child(PYTHON, __file__, "both", jsonl=jsonl, count=options.pairs(5))
    return Result(
        f"Index {jsonl.stat().st_size / 1e9:.1f} GB of JSONL without validation",
        [
            row(
                "write the index (numpy: find the newlines)",
                "MB/s",
                [tuple(pair) for pair in pairs],
                "numpy scan",
                TARGET,
            )
        ],
        [
            "Lines of about 1 KB. The scan runs `numpy.flatnonzero(block == 10)` on blocks of 1 MiB in one thread and "
            "writes nothing.",
        ],
    )


def both(jsonl: str, count: int) -> list[tuple[float, float]]:
    """Return pairs of MB/s; runs in a child process."""
    from penstock.prepare.jsonl_index import build_index

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
    """Count the newlines of a file with numpy."""
    import numpy as np

    with open(jsonl, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = np.frombuffer(mapped, np.uint8)
        blocks = (whole[start : start + _SCAN_BYTES] for start in range(0, len(whole), _SCAN_BYTES))
        return sum(len(np.flatnonzero(block == 10)) for block in blocks)


if __name__ == "__main__":
    answer(globals())

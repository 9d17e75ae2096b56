"""How fast are random windows read from a flat-tokens group that isn't in the page cache, and how much is read?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import groups
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row

LENGTH, BATCH, COUNT = 2048, 32, 2048
TARGET = 5


def run(options: Options) -> Result:
    """Compare with a memory map of the same tokens, each in a child process, after dropping the page cache."""
    n_tokens = groups.LARGE_TOKENS if options.large else groups.TOKENS
    plain, path = groups.plain(n_tokens), groups.group("raw 1Mi", n_tokens)
    # The fewer pages are needed, the more unneeded data a memory map reads.
    count = COUNT * n_tokens // groups.LARGE_TOKENS
    pairs = alternate(
        lambda: child(PYTHON, __file__, "cold", path=path, count=count, n_tokens=n_tokens),
        lambda: child(PYTHON, __file__, "mapped", path=plain, count=count, n_tokens=n_tokens),
        options.pairs(5),
    )
    megabytes = n_tokens * 4 // 10**6
    return Result(
        f"flat-tokens: random windows from {megabytes} MB on disk, uncached",
        [
            row(f"batches of {BATCH}", "windows/s", columns(pairs, "rate", "rate"), "mmap", TARGET),
            row("windows per MB read from disk", "windows/MB", columns(pairs, "per_mb", "per_mb"), "mmap"),
        ],
        [f"{count:,} windows of {LENGTH:,} tokens, after dropping the files from the page cache."],
    )


def cold(path: str, count: int, n_tokens: int) -> dict[str, float]:
    """Read batches with Penstock; runs in a child process."""
    import penstock as ps

    source: Any = ps.open(path)
    for folder, _, names in os.walk(path):
        for name in names:
            _drop(Path(folder) / name)
    return _timed(source.gather, count, n_tokens)


def mapped(path: str, count: int, n_tokens: int) -> dict[str, float]:
    """Read batches from a memory map; runs in a child process."""
    import numpy as np

    view = np.lib.stride_tricks.sliding_window_view(np.memmap(path, np.uint32, "r").view(np.ndarray), LENGTH)
    _drop(Path(path))
    return _timed(lambda starts, length: view[starts] >> 1, count, n_tokens)


def _timed(gather: Any, count: int, n_tokens: int) -> dict[str, float]:
    import numpy as np

    batches = np.random.default_rng(6).integers(0, n_tokens - LENGTH, count).reshape(-1, BATCH)
    read_bytes, started = _read_bytes(), time.perf_counter()
    for starts in batches:
        gather(starts, LENGTH)
    seconds = time.perf_counter() - started
    return {"rate": count / seconds, "per_mb": count * 1e6 / max(1, _read_bytes() - read_bytes)}


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


if __name__ == "__main__":
    answer(globals())

"""How fast is a whole compressed flat-tokens group read, and an uncompressed one written?"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import groups
from harness import DATA, PYTHON, Options, Result, alternate, answer, child, columns, row

STEP_TOKENS = 1 << 24
PASSES = 3
"""The fastest pass counts, because a pass over 100 MB is short and timings are noisy."""

TARGET_SCAN, TARGET_WRITE = 0.8, 0.7


def run(options: Options) -> Result:
    """Compare reading with numcodecs on all cores, and writing with a plain file and fsync."""
    n_tokens = groups.LARGE_TOKENS if options.large else groups.TOKENS
    path = groups.group("seqax", n_tokens)
    read = alternate(
        lambda: child(PYTHON, __file__, "scan", path=path),
        lambda: child(PYTHON, __file__, "decode", path=path),
        options.pairs(5),
    )
    write = alternate(
        lambda: child(PYTHON, __file__, "write", n_tokens=n_tokens),
        lambda: child(PYTHON, __file__, "plain", n_tokens=n_tokens),
        options.pairs(5),
    )
    return Result(
        f"flat-tokens: read and write {n_tokens // 10**6} M tokens",
        [
            row("read, seqax layout", "MB/s", columns(read, "rate", "rate"), "numcodecs, all cores", TARGET_SCAN),
            row("write, raw layout", "MB/s", columns(write, "rate", "rate"), "plain file with fsync", TARGET_WRITE),
        ],
        ["MB of encoded tokens. Penstock returns token ids; numcodecs returns chunks as stored."],
    )


def scan(path: str) -> dict[str, float]:
    """Read all ids in steps of 2^24; runs in a child process."""
    import penstock as ps

    source: Any = ps.open(path)

    def work() -> None:
        for start in range(0, source.num_tokens, STEP_TOKENS):
            source.tokens(start, min(source.num_tokens, start + STEP_TOKENS))

    work()
    return {"rate": source.num_tokens * 4e-6 / _fastest(work)}


def decode(path: str) -> dict[str, float]:
    """Decompress all chunks with numcodecs, one thread per core; runs in a child process."""
    import json

    from numcodecs import blosc

    folder = Path(path) / "encoded_tokens"
    meta = json.loads((folder / ".zarray").read_text())
    files = [folder / str(number) for number in range(-(-meta["shape"][0] // meta["chunks"][0]))]

    def work(file: Path) -> None:
        blosc.decompress(file.read_bytes())

    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, files))
        return {"rate": meta["shape"][0] * 4e-6 / _fastest(lambda: list(pool.map(work, files)))}


def write(n_tokens: int) -> dict[str, float]:
    """Write a group with Penstock; runs in a child process."""
    import numpy as np

    import penstock as ps

    ids, lengths = groups.encoded_tokens(n_tokens) >> 1, np.diff(groups.seq_starts(n_tokens))
    path = DATA / "written.zarr"

    def work() -> None:
        with ps.create(path, format="flat-tokens") as writer:
            writer.write_run(ids, lengths)

    def clean() -> None:
        shutil.rmtree(path, ignore_errors=True)
        Path(f"{path}.penstock").unlink(missing_ok=True)

    return {"rate": n_tokens * 4e-6 / _fastest(work, clean)}


def plain(n_tokens: int) -> dict[str, float]:
    """Write the same bytes to one file; runs in a child process."""
    encoded = groups.encoded_tokens(n_tokens)
    path = DATA / "written.bin"

    def work() -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, n_tokens, 1 << 20):
                file.write(encoded[start : start + (1 << 20)])
            os.fsync(file.fileno())

    return {"rate": n_tokens * 4e-6 / _fastest(work, lambda: path.unlink(missing_ok=True))}


def _fastest(work: Callable[[], object], clean: Callable[[], object] = lambda: None) -> float:
    seconds: list[float] = []
    for _ in range(PASSES):
        clean()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    clean()
    return min(seconds)


if __name__ == "__main__":
    answer(globals())

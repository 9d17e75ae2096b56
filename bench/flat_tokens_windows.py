"""How long does a random window of 2,048 tokens take out of a flat-tokens group, when the data are in memory?"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import groups
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import tensorstore

LENGTH, BATCH = 2048, 32
CACHE_BYTES = 1 << 26
TARGET_RAW, TARGET_SEQAX, TARGET_BARE, TARGET_TENSORSTORE = 60, 30, 0.5, 1
ROUNDS = 4
FEW = 200
"""Windows that zarr-python reads: it takes up to 8 ms for one."""


def run(options: Options) -> Result:
    """Ours, zarr-python and the bare mapping in one child; tensorstore with the same cache in its own."""
    rows = []
    for layout in groups.LAYOUTS:
        # Of a large compressed group only a part fits the cache of decoded chunks.
        n_tokens = groups.LARGE_TOKENS if options.large or layout == "seqax" else groups.TOKENS
        plain, path = groups.plain(n_tokens), groups.group(layout, n_tokens)
        pairs = alternate(
            partial(child, PYTHON, __file__, "windows", path=path, plain=plain, n_tokens=n_tokens),
            partial(
                tensorstore.inside,
                "windows",
                path=path,
                length=LENGTH,
                n_tokens=n_tokens,
                cache_bytes=CACHE_BYTES,
                driver="zarr3" if layout == "sharded raw" else "zarr",
            ),
            options.pairs(3),
        )
        target = TARGET_SEQAX if layout == "seqax" else TARGET_RAW
        own = [(ours, ours) for ours, _ in pairs]
        rows.append(row(f"{layout}: one", "windows/s", columns(own, "one", "zarr"), "zarr-python", target))
        if layout != "seqax":
            rows.append(row(f"{layout}: one", "windows/s", columns(own, "one", "bare_one"), "bare mmap", TARGET_BARE))
            rows.append(row(f"{layout}: batch", "windows/s", columns(own, "batch", "bare"), "bare mmap", TARGET_BARE))
        for what in ("one", "batch"):
            found = columns(pairs, what, what)
            rows.append(row(f"{layout}: {what}", "windows/s", found, tensorstore.NAME, TARGET_TENSORSTORE))
    return Result(
        f"flat-tokens: random windows of {LENGTH} tokens, decoded to ids",
        rows,
        [
            "zarr-python 3 reads one window after another. The bare mapping is of one flat file, shifted by one bit.",
            f"Raw groups hold {groups.TOKENS // 10**6} M tokens, that of seqax {groups.LARGE_TOKENS // 10**6} M.",
            f"Tensorstore and we keep {CACHE_BYTES >> 20} MiB of decoded chunks. Its batches are all 32 reads at once.",
        ],
    )


def windows(path: str, plain: str, n_tokens: int) -> dict[str, Any]:
    """In a child: windows a second."""
    import numpy as np
    import zarr

    import penstock as ps

    source: Any = ps.open(path)
    mapped = np.memmap(plain, np.uint32, "r").view(np.ndarray)
    view = np.lib.stride_tricks.sliding_window_view(mapped, LENGTH)
    array: Any = zarr.open_group(path, mode="r")["encoded_tokens"]
    count = 4_000 if Path(path).name.endswith("seqax.zarr") else 32_000
    starts = np.random.default_rng(5).integers(0, n_tokens - LENGTH, count)
    singles, batches = starts.tolist(), starts.reshape(-1, BATCH)
    assert (source.tokens(singles[0], singles[0] + LENGTH) == array[singles[0] : singles[0] + LENGTH] >> 1).all()

    def one() -> None:
        for start in singles:
            source.tokens(start, start + LENGTH)

    def batch() -> None:
        for chosen in batches:
            source.gather(chosen, LENGTH)

    def bare_one() -> None:
        for start in singles:
            mapped[start : start + LENGTH] >> 1

    def bare() -> None:
        for chosen in batches:
            out = view[chosen]
            out >>= 1

    def few() -> None:
        for start in singles[:FEW]:
            array[start : start + LENGTH] >> 1

    works = (one, batch, bare_one, bare)
    for work in works:
        work()
    # The fastest of several rounds: other work on the machine comes and goes.
    rounds = [{work.__name__: count / _seconds(work) for work in works} for _ in range(ROUNDS)]
    return {name: max(one[name] for one in rounds) for name in rounds[0]} | {"zarr": FEW / _seconds(few)}


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    answer(globals())

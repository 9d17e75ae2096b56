"""How fast are random windows of 2,048 tokens read from a flat-tokens group in the page cache?"""

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
PATTERNS = {"one": "one at a time", "batch": f"batches of {BATCH}"}
FEW = 200
"""Windows that zarr-python reads; one takes up to 8 ms."""


def run(options: Options) -> Result:
    """Run Penstock, zarr-python and the memory map in one child, tensorstore with the same cache size in another."""
    rows = []
    for layout in groups.LAYOUTS:
        # Only a part of a large compressed group fits into the cache of decoded chunks.
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
        rows.append(
            row(f"{layout}: {PATTERNS['one']}", "windows/s", columns(own, "one", "zarr"), "zarr-python", target)
        )
        if layout != "seqax":
            for pattern, bare in (("one", "bare_one"), ("batch", "bare")):
                figures = columns(own, pattern, bare)
                rows.append(row(f"{layout}: {PATTERNS[pattern]}", "windows/s", figures, "mmap", TARGET_BARE))
        for pattern, label in PATTERNS.items():
            figures = columns(pairs, pattern, pattern)
            rows.append(row(f"{layout}: {label}", "windows/s", figures, tensorstore.NAME, TARGET_TENSORSTORE))
    return Result(
        f"flat-tokens: random windows of {LENGTH:,} tokens",
        rows,
        [
            "'raw 64Ki' and 'raw 1Mi' are Zarr version 2 without compression, in chunks of 2^16 and 2^20 tokens. "
            "'sharded raw' is version 3, with chunks of 2^16 in shards of 2^22. 'seqax' is the compressed layout that "
            "seqax writes by default.",
            "Every side returns decoded token ids. zarr-python 3 reads one window at a time. mmap is a memory map of "
            "one flat file whose values are shifted by one bit.",
            f"The raw groups have {groups.TOKENS // 10**6} M tokens, the seqax group has "
            f"{groups.LARGE_TOKENS // 10**6} M.",
            f"tensorstore and Penstock each cache {CACHE_BYTES >> 20} MiB of decoded chunks. A tensorstore batch is "
            f"{BATCH} concurrent reads.",
        ],
    )


def windows(path: str, plain: str, n_tokens: int) -> dict[str, Any]:
    """Return windows per second; runs in a child process."""
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
    # The fastest of several rounds, because of other load on the machine.
    rounds = [{work.__name__: count / _seconds(work) for work in works} for _ in range(ROUNDS)]
    return {name: max(one[name] for one in rounds) for name in rounds[0]} | {"zarr": FEW / _seconds(few)}


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    answer(globals())

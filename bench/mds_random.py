"""How many random MDS samples of 4 KB are read per second, and how long does an uncached one take?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import shards
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import streaming

BATCH = 64
SEED = 5
TARGET_ONE, TARGET_BATCH = 2, 5
COLD_SAMPLES = 1000


def run(options: Options) -> Result:
    """Run both sides in turn in child processes."""
    path = shards.samples(shards.TOKEN_BYTES)
    count = 64_000 if options.quick else 128_000
    warm = alternate(
        lambda: child(PYTHON, __file__, "warm", path=path, count=count),
        lambda: streaming.inside("read", path=path, seed=SEED, count=count),
        options.pairs(5),
    )
    cold = alternate(
        lambda: child(PYTHON, __file__, "cold", path=path, count=COLD_SAMPLES),
        lambda: streaming.inside("cold", path=path, seed=SEED, count=COLD_SAMPLES),
        options.pairs(5),
    )
    one = [(ours["one"], max(theirs["reader"], theirs["local"])) for ours, theirs in warm]
    return Result(
        "Random MDS samples of 4 KB from 200 MB",
        [
            row("one at a time", "samples/s", columns(warm, "one", "reader"), streaming.READER, TARGET_ONE),
            row("one at a time (the faster of Reader and LocalDataset)", "samples/s", one, streaming.NAME),
            row(
                "batches of 64 (Reader: one at a time)",
                "samples/s",
                columns(warm, "batch", "reader"),
                streaming.READER,
                TARGET_BATCH,
            ),
            row("one at a time", "samples/s", columns(warm, "one", "local"), f"{streaming.NAME} LocalDataset"),
            row("uncached: open and read the first sample", "s", columns(cold, "first", "first"), streaming.NAME),
            row("uncached: one sample, median", "s", columns(cold, "p50", "p50"), streaming.NAME),
            row("uncached: one sample, 99th percentile", "s", columns(cold, "p99", "p99"), streaming.NAME),
        ],
        [
            "A Reader reads a single shard. The benchmark passes it the position in the shard; Penstock and "
            "LocalDataset find shard and position from the sample number.",
            "Uncached: 1,000 samples after dropping all files from the page cache. Some reads also open a shard.",
        ],
    )


def warm(path: str, count: int) -> dict[str, float]:
    """Return samples per second with every page mapped; runs in a child process."""
    import numpy as np

    import penstock as ps

    source = ps.open(path)
    places = np.random.default_rng(SEED).integers(0, len(source), count)
    singles, batches = places.tolist(), places.reshape(-1, BATCH)
    for start in range(0, len(source), BATCH):
        source.get_batch(range(start, min(start + BATCH, len(source))))

    def one() -> None:
        for place in singles:
            source[place]

    def batch() -> None:
        for chosen in batches:
            source.get_batch(chosen)

    return {work.__name__: count / _seconds(work) for work in (one, batch)}


def cold(path: str, count: int) -> dict[str, float]:
    """Return seconds to open and read the first sample, and per further random sample; runs in a child process."""
    import numpy as np

    import penstock as ps

    len(ps.open(shards.samples(shards.IMAGE_BYTES))[0]["tokens"])  # import everything before the timing
    shards.drop_pages(Path(path))
    began = time.perf_counter()
    source = ps.open(path)
    len(source[len(source) // 3]["tokens"])
    first = time.perf_counter() - began
    places = np.random.default_rng(SEED).integers(0, len(source), count).tolist()

    def read(place: int) -> None:
        sum(source[place]["tokens"][::512])

    taken = [_seconds(lambda place=place: read(place)) for place in places]
    return {"first": first, "p50": float(np.percentile(taken, 50)), "p99": float(np.percentile(taken, 99))}


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    answer(globals())

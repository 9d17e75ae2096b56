"""How many rows per second are read from CSV and JSONL shards?"""

from __future__ import annotations

import time
from typing import Any

import shards
from harness import PYTHON, Options, Result, Row, alternate, answer, child, columns, row
from peers import streaming

BATCH = 64
SEED = 5
TARGET = 4


def run(options: Options) -> Result:
    """Read rows sequentially and at random, on both sides in child processes."""
    rows: list[Row] = []
    count = shards.N_ROWS
    for format, name in (("csv", "CSV"), ("json-shards", "JSONL")):
        path = shards.table(format)
        pairs = alternate(
            lambda path=path: child(PYTHON, __file__, "read", path=path, count=count),
            lambda path=path: streaming.inside("read", path=path, seed=SEED, count=count),
            options.pairs(5),
        )
        one = columns(pairs, "one", "reader")
        rows.append(row(f"{name}, sequential", "rows/s", columns(pairs, "all", "sequential"), streaming.READER, TARGET))
        rows.append(row(f"{name}, random, one at a time", "rows/s", one, streaming.READER, TARGET))
        what = f"{name}, random, batches of {BATCH} (Reader: one at a time)"
        rows.append(row(what, "rows/s", columns(pairs, "batch", "reader"), streaming.READER))
    return Result(
        "Read 50,000 rows from CSV and JSONL shards",
        rows,
        [
            "Each row has an int, a text of about 200 characters and a float.",
            f"Sequential: Penstock reads batches of {BATCH}. mosaicml-streaming reads row by row, because its Reader "
            "has no batches.",
        ],
    )


def read(path: str, count: int) -> dict[str, float]:
    """Return rows per second for each access pattern, after reading everything once; runs in a child process."""
    import numpy as np

    import penstock as ps

    source = ps.open(path)
    places = np.random.default_rng(SEED).integers(0, len(source), count)
    singles, batches = places.tolist(), np.array_split(places, count // BATCH)
    runs = [np.arange(start, min(start + BATCH, len(source))) for start in range(0, len(source), BATCH)]

    def all_() -> None:
        for chosen in runs:
            source.get_batch(chosen)

    def one() -> None:
        for place in singles:
            source[place]

    def batch() -> None:
        for chosen in batches:
            source.get_batch(chosen)

    all_()
    return {"all": len(source) / _seconds(all_), "one": count / _seconds(one), "batch": count / _seconds(batch)}


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    answer(globals())

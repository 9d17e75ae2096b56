"""How many rows a second are read out of CSV and JSONL shards?"""

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
    """One after another in batches of 64, and at random one by one; both sides in children."""
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
        rows.append(row(f"{name}, all", "rows/s", columns(pairs, "all", "sequential"), "its Reader", TARGET))
        rows.append(row(f"{name}, random, one at a time", "rows/s", one, "its Reader", TARGET))
        rows.append(row(f"{name}, random batches to one", "rows/s", columns(pairs, "batch", "reader"), "its Reader"))
    return Result(
        "50,000 rows of an int, a text of about 200 characters and a float",
        rows,
        ["All: in batches of 64 here, row by row there, which has no batches."],
    )


def read(path: str, count: int) -> dict[str, float]:
    """In a child: rows a second in each way, after everything was read once."""
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

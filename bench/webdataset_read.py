"""How fast are samples of a prepared WebDataset read: by file name, key or index, in order, and shuffled?"""

from __future__ import annotations

import itertools
import time
from typing import Any

import tars
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import energon

SEED = 3
COUNT, SHUFFLED = 10_000, 40_000
QUICK_SHUFFLED = 6_000  # samples that Energon reads; it becomes slower over time
TARGETS = {"name": 4, "key": 4, "number": 15}
LABELS = {"name": "random, by file name", "key": "random, by key", "number": "random, by index"}
TARGET_EPOCH, TARGET_SHUFFLED = 20, 100
BATCH = 32


def run(options: Options) -> Result:
    """Run both in turn in child processes, on the same 40,000 samples."""
    path, count = tars.small(), options.pairs(3)
    access = alternate(
        lambda: child(PYTHON, __file__, "random_access", path=path, count=COUNT),
        lambda: energon.inside("random_access", path=path, seed=SEED, count=COUNT),
        count,
    )
    epochs = alternate(
        lambda: child(PYTHON, __file__, "epoch", path=path), lambda: energon.inside("epoch", path=path), count
    )
    theirs = QUICK_SHUFFLED if options.quick else SHUFFLED
    mixed = alternate(
        lambda: child(PYTHON, __file__, "shuffled", path=path, count=SHUFFLED),
        lambda: energon.inside("shuffled", path=path, count=theirs),
        1,
    )
    rows = [
        row(LABELS[name], "samples/s", columns(access, name, name), energon.NAME, target)
        for name, target in TARGETS.items()
    ]
    rows += [
        row(
            "one raw epoch, one process", "samples/s", columns(epochs, "samples", "samples"), energon.NAME, TARGET_EPOCH
        ),
        row("one raw epoch, Penstock's loader", "samples/s", columns(epochs, "loader", "samples"), energon.NAME),
        row("shuffled, one process", "samples/s", columns(mixed, "samples", "samples"), energon.NAME, TARGET_SHUFFLED),
    ]
    return Result(
        "Read 40,000 samples of 2 KB from 8 tars",
        rows,
        [
            "Raw bytes of both parts of a sample, without decoding. By file name, one part of a sample is read.",
            f"Penstock's loader returns batches of {BATCH}. Shuffled: Penstock reads a whole epoch with its loader, "
            f"Energon {theirs:,} samples with buffers of 100. This row was measured once.",
        ],
    )


def random_access(path: str, count: int) -> dict[str, float]:
    """Return samples per second; runs in a child process."""
    import random

    import penstock as ps

    source: Any = ps.open(path, split="train", raw=True)
    draw = random.Random(SEED)
    chosen = [draw.randrange(len(source)) for _ in range(count)]
    keys = [f"sample_{place:08d}" for place in chosen]
    names = [f"{key}.txt" for key in keys]
    source[0], source.get(names[0]), source.index_of(keys[0])
    return {
        "name": _rate(count, lambda: [source.get(name) for name in names]),
        "key": _rate(count, lambda: [source[source.index_of(key)] for key in keys]),
        "number": _rate(count, lambda: [source[place] for place in chosen]),
    }


def epoch(path: str) -> dict[str, float]:
    """Return samples per second, in order; runs in a child process."""
    import penstock as ps

    source = ps.open(path, split="train", raw=True)
    samples = _rate(len(source), lambda: sum(1 for _ in source))
    source = ps.open(path, split="train", raw=True)
    loader = ps.Loader(source, global_batch=BATCH, tail="pad", workers=0)
    return {"samples": samples, "loader": _rate(len(source), lambda: sum(1 for _ in loader))}


def shuffled(path: str, count: int) -> dict[str, float]:
    """Return samples per second of a shuffled epoch; runs in a child process."""
    import penstock as ps

    source = ps.open(path, split="train", raw=True)
    loader = ps.Loader(ps.Shuffle(source, seed=SEED), global_batch=BATCH, workers=0)
    return {"samples": _rate(count, lambda: sum(1 for _ in itertools.islice(loader, count // BATCH)))}


def _rate(count: int, work: Any) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    answer(globals())

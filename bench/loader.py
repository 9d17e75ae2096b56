"""How many windows per second does the loader return?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import PYTHON, Options, Result, Row, alternate, answer, child, columns, row
from peers import modalities

LENGTH, BATCH, WARM_STEPS = 2048, 32, 50
_BATCH_BYTES = BATCH * (2 * (LENGTH + 1) + LENGTH * (1 + 4 + 4))
TARGET_ALONE, TARGET_WORKERS = 3, 20
TARGET_TWO, TARGET_ALL = 4, 1.5


def run(options: Options) -> Result:
    """Read a shuffled epoch without workers and with two, including worker startup."""
    pbin = data.packed_tokens()
    steps = data.MANY_TOKENS // LENGTH // BATCH
    rows: list[Row] = []

    def pairs(kind: str, workers: int) -> Any:
        found = alternate(
            lambda: child(PYTHON, __file__, kind, pbin=pbin, steps=steps, workers=workers),
            lambda: modalities.inside("load", pbin=pbin, length=LENGTH, batch=BATCH, steps=steps, workers=workers),
            options.pairs(3),
        )
        return columns(found, "windows_per_second", "windows_per_second")

    for workers, target in ((0, TARGET_ALONE), (2, TARGET_WORKERS)):
        name = "no workers" if workers == 0 else "two workers"
        rows.append(row(f"tokens only, {name}", "windows/s", pairs("tokens", workers), modalities.NAME, target))
        two = TARGET_TWO if workers == 0 else None
        rows.append(row(f"inputs and targets, {name}", "windows/s", pairs("two", workers), modalities.NAME, two))
        every = TARGET_ALL if workers == 0 else None
        rows.append(row(f"all labels, {name}", "windows/s", pairs("labels", workers), modalities.NAME, every))
        rows.append(row(f"torch tensors, {name}", "windows/s", pairs("tensors", workers), modalities.NAME))
    found = alternate(
        lambda: child(PYTHON, __file__, "labels", pbin=pbin, steps=steps, workers=0),
        lambda: child(PYTHON, __file__, "copied"),
        options.pairs(3),
    )
    rows.append(row("all labels, no workers", "windows/s", columns(found, "windows_per_second", "windows_per_second"),
                    "copying the same number of bytes"))  # fmt: skip
    return Result(
        "Loader: shuffled windows of 2,048 tokens, batches of 32",
        rows,
        [
            "'All labels' means inputs, targets, loss mask, segment ids and positions of each token, and document "
            "borders. Modalities' collator creates only inputs and targets in all rows.",
            f"A batch with all labels has {_BATCH_BYTES:,} bytes and is written into the memory of an earlier batch. "
            "The last row compares it with numpy copying the same number of bytes between existing arrays.",
            "Penstock's tensors are int64, Modalities' are int32.",
        ],
    )


def tokens(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """Read windows as stored; runs in a child process."""
    import penstock as ps

    stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(pbin)), seed=7)
    return _measure(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def labels(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """Read windows with all labels; runs in a child process."""
    import penstock as ps

    stream = ps.Shuffle(ps.Chunk(LENGTH, labels="shift", eos_id=data.EOS_ID)(ps.open(pbin)), seed=7)
    return _measure(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def two(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """Read only inputs and targets, like Modalities' collator; runs in a child process."""
    import penstock as ps

    windows = ps.Chunk(LENGTH, labels="shift", fields=("inputs", "targets"))(ps.open(pbin))
    stream = ps.Shuffle(windows, seed=7)
    return _measure(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def copied() -> dict[str, Any]:
    """Copy arrays with the sizes of all labels, best of 300 rounds; runs in a child process."""
    import numpy as np

    kinds = ((LENGTH + 1, "uint16"), (LENGTH, "bool"), (LENGTH, "int32"), (LENGTH, "int32"))
    arrays = [(np.ones((BATCH, length), kind), np.ones((BATCH, length), kind)) for length, kind in kinds]
    best = float("inf")
    for _ in range(300):
        started = time.perf_counter()
        for a, b in arrays:
            np.copyto(b, a)
        best = min(best, time.perf_counter() - started)
    return {"windows_per_second": BATCH / best}


def tensors(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """Read through the torch loader; runs in a child process."""
    import penstock as ps
    from penstock.load.torch import torch_loader

    stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(pbin)), seed=7)
    return _measure(lambda: torch_loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def _measure(make: Any, stream: Any, steps: int) -> dict[str, Any]:
    from itertools import islice

    import numpy as np

    source = stream.children()["source"]
    # Touch every page and set everything up before the timing.
    for start in range(0, len(source) - BATCH, BATCH):
        source.get_batch(np.arange(start, start + BATCH))
    for _ in islice(make(), WARM_STEPS):
        pass
    started = time.perf_counter()
    seen = sum(1 for _ in islice(make(), steps))
    return {"windows_per_second": seen * BATCH / (time.perf_counter() - started)}


if __name__ == "__main__":
    answer(globals())

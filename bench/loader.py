"""How many windows a second come out of the loader?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import PYTHON, Options, Result, Row, alternate, answer, child, columns, row
from peers import modalities

LENGTH, BATCH, WARM_STEPS = 2048, 32, 50
TARGET_ALONE, TARGET_WORKERS = 3, 20


def run(options: Options) -> Result:
    """A shuffled epoch, start of the workers included, without workers and with two."""
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
        rows.append(row(f"with labels, {name}", "windows/s", pairs("labels", workers), modalities.NAME))
        rows.append(row(f"torch tensors, {name}", "windows/s", pairs("tensors", workers), modalities.NAME))
    return Result(
        "The loader: shuffled windows of 2,048 tokens in batches of 32",
        rows,
        [
            "With labels: inputs, targets, loss mask, segment ids and positions of each token. Modalities' collator "
            "makes inputs and targets only, in each of these rows.",
            "Tensors are int64; Modalities' are int32.",
        ],
    )


def tokens(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """In a child: windows as stored."""
    import penstock as ps

    stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(pbin)), seed=7)
    return _measure(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def labels(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """In a child: windows with everything that training needs."""
    import penstock as ps

    stream = ps.Shuffle(ps.Chunk(LENGTH, labels="shift", eos_id=data.EOS_ID)(ps.open(pbin)), seed=7)
    return _measure(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def tensors(pbin: str, steps: int, workers: int) -> dict[str, Any]:
    """In a child: the torch loader."""
    import penstock as ps
    from penstock.load.torch import torch_loader

    stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(pbin)), seed=7)
    return _measure(lambda: torch_loader(stream, BATCH, rank=0, world=1, workers=workers), stream, steps)


def _measure(make: Any, stream: Any, steps: int) -> dict[str, Any]:
    from itertools import islice

    import numpy as np

    source = stream.children()["source"]
    # Every page is mapped, and everything is set up once, before the timing.
    for start in range(0, len(source) - BATCH, BATCH):
        source.get_batch(np.arange(start, start + BATCH))
    for _ in islice(make(), WARM_STEPS):
        pass
    started = time.perf_counter()
    seen = sum(1 for _ in islice(make(), steps))
    return {"windows_per_second": seen * BATCH / (time.perf_counter() - started)}


if __name__ == "__main__":
    answer(globals())

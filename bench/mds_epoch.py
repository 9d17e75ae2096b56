"""How many MDS samples a second come out of the loader in a shuffled epoch?"""

from __future__ import annotations

import mmap
import time
from typing import Any

import shards
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import streaming

BATCH = 64
TARGET_ALONE, TARGET_WORKERS, TARGET_COPY = 10, 5, 0.8


def run(options: Options) -> Result:
    """Samples of 4 KB beside the other's, of 100 KB beside a bare copy out of a map."""
    tokens, images = shards.samples(shards.TOKEN_BYTES), shards.samples(shards.IMAGE_BYTES)

    def pairs(workers: int) -> list[tuple[Any, Any]]:
        return alternate(
            lambda: child(PYTHON, __file__, "epoch", path=tokens, workers=workers),
            lambda: streaming.inside("epoch", path=tokens, batch=BATCH, workers=workers),
            options.pairs(3),
        )

    alone, two = pairs(0), pairs(2)
    copies = [child(PYTHON, __file__, "copies", path=images) for _ in range(options.pairs(5))]
    bare = [(one["loader"], one["copy"]) for one in copies]
    return Result(
        "A shuffled epoch of MDS samples, in batches of 64",
        [
            row("4 KB, one process", "samples/s", columns(alone, "loader", "alone"), streaming.NAME, TARGET_ALONE),
            row("4 KB, one process, its loader", "samples/s", columns(alone, "loader", "loader"), streaming.NAME),
            row(
                "4 KB, two torch workers", "samples/s", columns(two, "torch", "loader"), streaming.NAME, TARGET_WORKERS
            ),
            row("4 KB, our loader, two threads", "samples/s", columns(two, "loader", "loader"), streaming.NAME),
            row("100 KB, no workers", "samples/s", bare, "copies out of a map", TARGET_COPY),
        ],
        [
            "In one process the other's dataset alone, without its DataLoader, is its faster way.",
            "Two torch workers: `DataLoader(num_workers=2)` over `TorchDataset` of a shuffled stream, and the other's "
            "own loader; the start of the workers is included. Batches are what the other's collate function "
            "makes of bytes: lists.",
            "Every sample is a `bytes` of its own on both sides; the copies are `map[start:stop]` in the same order.",
        ],
    )


def epoch(path: str, workers: int) -> dict[str, float]:
    """In a child: samples a second of the second epoch, through our loader, and through torch's with workers."""
    import penstock as ps

    source = ps.open(path)
    stream = ps.Shuffle(source, seed=7)
    n_batches = len(source) // BATCH

    def loader() -> Any:
        return ps.Loader(stream, BATCH, rank=0, world=1, workers=workers)

    found = {"loader": _rate(loader, n_batches)}
    if workers:
        from torch.utils.data import DataLoader

        from penstock.load.torch import TorchDataset

        dataset = TorchDataset(stream, length=n_batches * BATCH)
        found["torch"] = _rate(
            lambda: DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=dataset.collate), n_batches
        )
    return found


def copies(path: str) -> dict[str, float]:
    """In a child: samples a second out of the loader, and by slices of maps in the same order."""
    import numpy as np

    import penstock as ps

    source: Any = ps.open(path)
    stream = ps.Shuffle(source, seed=7)
    n_batches = len(source) // BATCH
    count = n_batches * BATCH
    extents = [source.place_of(index).extents[0] for index in stream.order(np.arange(count)).tolist()]
    maps: dict[str, mmap.mmap] = {}
    for extent in extents:
        if extent.path not in maps:
            with open(extent.path, "rb") as file:
                maps[extent.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cuts = [(maps[one.path], one.offset_bytes, one.offset_bytes + one.length_bytes) for one in extents]

    def copy() -> None:
        for at in range(0, count, BATCH):
            [data[start:stop] for data, start, stop in cuts[at : at + BATCH]]

    copy()
    ours = _rate(lambda: ps.Loader(stream, BATCH, rank=0, world=1, workers=0), n_batches)
    began = time.perf_counter()
    copy()
    return {"loader": ours, "copy": count / (time.perf_counter() - began)}


def _rate(make: Any, n_batches: int) -> float:
    from itertools import islice

    seconds = 0.0
    for _ in range(2):  # the first epoch maps every page
        began = time.perf_counter()
        seen = sum(1 for _ in islice(make(), n_batches))
        seconds = time.perf_counter() - began
    return seen * BATCH / seconds


if __name__ == "__main__":
    answer(globals())

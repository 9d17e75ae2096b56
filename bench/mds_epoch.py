"""How many MDS samples per second does the loader return in a shuffled epoch?"""

from __future__ import annotations

import mmap
import time
from typing import Any

import shards
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import streaming

BATCH = 64
TARGET_ALONE, TARGET_WORKERS, TARGET_COPY = 10, 5, 0.8
COPIES = "copies from a memory map"


def run(options: Options) -> Result:
    """Compare samples of 4 KB with mosaicml-streaming, and samples of 100 KB with copies from a memory map."""
    tokens, images = shards.samples(shards.TOKEN_BYTES), shards.samples(shards.IMAGE_BYTES)

    def pairs(workers: int) -> list[tuple[Any, Any]]:
        return alternate(
            lambda: child(PYTHON, __file__, "epoch", path=tokens, workers=workers),
            lambda: streaming.inside("epoch", path=tokens, batch=BATCH, workers=workers),
            options.pairs(3),
        )

    alone, two = pairs(0), pairs(2)

    def copies_of(path: str) -> list[tuple[float, float]]:
        figures = [child(PYTHON, __file__, "copies", path=path) for _ in range(options.pairs(5))]
        return [(one["loader"], one["copy"]) for one in figures]

    return Result(
        "Shuffled epoch of MDS samples, batches of 64",
        [
            row(
                "4 KB, one process (peer without its DataLoader)",
                "samples/s",
                columns(alone, "loader", "alone"),
                streaming.NAME,
                TARGET_ALONE,
            ),
            row(
                "4 KB, one process (peer with its DataLoader)",
                "samples/s",
                columns(alone, "loader", "loader"),
                streaming.NAME,
            ),
            row(
                "4 KB, two torch workers", "samples/s", columns(two, "torch", "loader"), streaming.NAME, TARGET_WORKERS
            ),
            row(
                "4 KB, Penstock's loader with two threads",
                "samples/s",
                columns(two, "loader", "loader"),
                streaming.NAME,
            ),
            row("4 KB, no workers", "samples/s", copies_of(tokens), COPIES),
            row("100 KB, no workers", "samples/s", copies_of(images), COPIES, TARGET_COPY),
        ],
        [
            "Two torch workers: `DataLoader(num_workers=2)` with a `TorchDataset` of a shuffled stream, compared with "
            "mosaicml-streaming's own loader. Worker startup is included. Batches are lists, which is what "
            "mosaicml-streaming's collate function returns for bytes.",
            "Each sample is a separate `bytes` object on both sides. The copies are `map[start:stop]` in the same "
            "order.",
        ],
    )


def epoch(path: str, workers: int) -> dict[str, float]:
    """Return samples per second of the second epoch, with Penstock's loader and with torch's if there are workers."""
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
    """Return samples per second of the loader, and of slices of memory maps in the same order."""
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

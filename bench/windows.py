"""How many random windows of 2,048 tokens are read per second?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import modalities

LENGTH, BATCH = 2048, 32
TARGET_ONE, TARGET_BATCH, TARGET_BARE = 1, 4, 0.5


def run(options: Options) -> Result:
    """Run Penstock and Modalities in turn in child processes. The numpy gather runs in Penstock's child."""
    count = 32_000 if options.quick else 128_000
    pbin = data.packed_tokens()
    pairs = alternate(
        lambda: child(PYTHON, __file__, "windows", pbin=pbin, count=count),
        lambda: modalities.inside("windows", pbin=pbin, length=LENGTH, count=count),
        options.pairs(5),
    )
    bare = [(ours["batch"], ours["bare"]) for ours, _ in pairs]
    return Result(
        "Random windows of 2,048 tokens from 60 M tokens",
        [
            row("one at a time", "windows/s", columns(pairs, "one", "one"), modalities.NAME, TARGET_ONE),
            row("one at a time, copied", "windows/s", columns(pairs, "copied", "one"), modalities.NAME),
            row(
                "batches of 32 (Modalities: one at a time)",
                "windows/s",
                columns(pairs, "batch", "one"),
                modalities.NAME,
                TARGET_BATCH,
            ),
            row("batches of 32", "windows/s", bare, "numpy gather", TARGET_BARE),
        ],
        [
            "Modalities returns a private int32 copy of each window; Penstock keeps the stored width. In the row "
            "'copied', each window of Penstock is also copied into private memory.",
            "The numpy gather is the faster of `sliding_window_view(tokens, 2048)[starts]` and a loop that copies "
            "rows.",
        ],
    )


def windows(pbin: str, count: int) -> dict[str, Any]:
    """Return windows per second for each access pattern, with all pages cached; runs in a child process."""
    import numpy as np

    import penstock as ps

    source = ps.Chunk(LENGTH, overlap=1)(ps.open(pbin))
    tokens = np.memmap(pbin, np.uint16, "r", offset=12, shape=(len(source) * (LENGTH - 1) + 1,))
    view = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH)
    indices = np.random.default_rng(5).integers(0, len(source), count)
    batches = indices.reshape(-1, BATCH)
    singles = indices.tolist()

    def one() -> None:
        for i in singles:
            source[i]["tokens"]

    def copied() -> None:
        for i in singles:
            np.array(source[i]["tokens"])

    def batch() -> None:
        for chosen in batches:
            source.get_batch(chosen)["tokens"]

    def gather() -> None:
        for chosen in batches:
            view[chosen * (LENGTH - 1)]

    def rows() -> None:
        for chosen in batches:
            out = np.empty((BATCH, LENGTH), np.uint16)
            for to, start in zip(out, (chosen * (LENGTH - 1)).tolist(), strict=True):
                to[:] = tokens[start : start + LENGTH]

    # Touch every page before the timing.
    for work in (batch, gather):
        work()
    rates = {work.__name__: count / _seconds(work) for work in (one, copied, gather, batch, rows)}
    return rates | {"bare": max(rates["gather"], rates["rows"])}


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    answer(globals())

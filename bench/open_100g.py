"""How long does the first shuffled batch of a packed file of 100 G tokens take, and how much memory?"""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import data
from harness import PYTHON, Options, Result, alternate, answer, child, columns, limit, row
from peers import modalities

LENGTH, BATCH = 2048, 32
SMALL_TOKENS = 1_000_000_000
TARGET, AT_MOST_MB = 500, 2
_CHILDREN = 5


def run(options: Options) -> Result:
    """Open, shuffle and read a batch. A file of 1% of the size shows whether memory grows."""
    huge, small = data.sparse_packed(data.HUGE_TOKENS, 2), data.sparse_packed(SMALL_TOKENS, 2)

    def ours(path: Any) -> Any:
        # The median of several children: one run of a few milliseconds is too noisy.
        found = [
            child(PYTHON, __file__, "first_batch", pbin=path, small=data.packed_tokens()) for _ in range(_CHILDREN)
        ]
        return {name: statistics.median(one[name] for one in found) for name in found[0]}

    pairs = alternate(
        lambda: ours(huge),
        lambda: modalities.inside("first_batch", pbin=huge, small=data.packed_tokens(), length=LENGTH, batch=BATCH),
        options.pairs(3),
    )
    sizes = alternate(lambda: ours(huge), lambda: ours(small), options.pairs(3))
    growth = [max(0.0, large["grown_mb"] - little["grown_mb"]) for large, little in sizes]
    memory = [(a["grown_mb"], b["grown_mb"]) for a, b in pairs]
    return Result(
        "First shuffled batch from 100 G tokens",
        [
            row(
                "open, shuffle, read the first batch",
                "s",
                columns(pairs, "seconds", "seconds"),
                modalities.NAME,
                TARGET,
            ),
            limit("extra memory for 100 G tokens compared with 1 G", "MB", growth, AT_MOST_MB),
        ],
        [
            f"Memory used: {max(a for a, _ in memory):,.1f} MB (Modalities: {max(b for _, b in memory):,.0f} MB).",
            "Windows of 2,048 tokens in batches of 32. The file is sparse and reads as zeros. Both sides read a batch "
            "from another file first.",
        ],
    )


def first_batch(pbin: str, small: str) -> dict[str, Any]:
    """Return seconds and the growth of the peak resident size; runs in a child process."""
    import penstock as ps

    def one(path: str) -> None:
        stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(path)), seed=7)
        next(iter(ps.Loader(stream, BATCH, rank=0, world=1, workers=0)))

    one(small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    one(pbin)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000}


if __name__ == "__main__":
    answer(globals())

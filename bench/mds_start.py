"""How long does the first batch of a shuffled epoch take with 10^8 samples in 10,000 shards, also after a resume?"""

from __future__ import annotations

import resource
import time
from typing import Any

import shards
from harness import PYTHON, Options, Result, alternate, answer, child, columns, row
from peers import streaming

BATCH = 32
RESUME_AT = shards.N_SHARDS * shards.SHARD_SAMPLES // 2
TARGET_START, TARGET_MEMORY, TARGET_RESUME = 50, 100, 100


def run(options: Options) -> Result:
    """Run both sides in child processes that have opened a small dataset before."""
    many, few = shards.many_samples(), shards.few_samples()

    def pairs(resume_at: int) -> list[tuple[Any, Any]]:
        arguments: dict[str, Any] = {"path": many, "small": few, "batch": BATCH, "resume_at": resume_at}
        return alternate(
            lambda: child(PYTHON, __file__, "first_batch", **arguments),
            lambda: streaming.inside("first_batch", **arguments),
            options.pairs(2),
        )

    start, resume = pairs(0), pairs(RESUME_AT)
    again = [(ours["again_s"], theirs["seconds"]) for ours, theirs in resume]
    memory = [(ours["grown_mb"], theirs["grown_mb"]) for ours, theirs in start]
    return Result(
        "First batch from 10^8 samples in 10,000 MDS shards",
        [
            row(
                "open, shuffle, read the first batch",
                "s",
                columns(start, "seconds", "seconds"),
                streaming.NAME,
                TARGET_START,
            ),
            row("memory used", "MB", memory, streaming.NAME, TARGET_MEMORY),
            row(
                "open and resume in the middle of an epoch", "s", columns(resume, "seconds", "seconds"), streaming.NAME
            ),
            row("resume in the middle of an epoch, already open", "s", again, streaming.NAME, TARGET_RESUME),
        ],
        [
            "Penstock uses `Shuffle(seed=7)`, which mixes all samples; mosaicml-streaming uses its default, py1e. "
            "mosaicml-streaming resumes by starting with a state.",
            "All shards are hard links to one file of 60 KB, so that neither side waits for data.",
        ],
    )


def first_batch(path: str, small: str, batch: int, resume_at: int) -> dict[str, float]:
    """Return seconds to open and read a batch, growth of the resident size, and seconds to load the state again."""
    import penstock as ps

    def loader(path: str) -> ps.Loader:
        return ps.Loader(ps.Shuffle(ps.open(path), seed=7), batch, rank=0, world=1, workers=0)

    def state_of(path: str, position: int) -> dict[str, Any]:
        stream = ps.Shuffle(ps.open(path), seed=7)
        return ps.Loader(stream, batch, rank=0, world=1, workers=0, start=position).state_dict()

    def read_batch(of: ps.Loader, state: dict[str, Any] | None) -> float:
        began = time.perf_counter()
        if state is not None:
            of.load_state_dict(state)
        next(iter(of))
        return time.perf_counter() - began

    read_batch(loader(small), None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = state_of(path, resume_at) if resume_at else None
    began = time.perf_counter()
    opened = loader(path)
    read_batch(opened, state)
    seconds = time.perf_counter() - began
    # No growth is visible below the peak of the startup.
    grown_mb = max(0.1, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
    return {"seconds": seconds, "grown_mb": grown_mb, "again_s": read_batch(opened, state)}


if __name__ == "__main__":
    answer(globals())

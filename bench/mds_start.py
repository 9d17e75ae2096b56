"""How long from 10^8 samples in 10,000 shards to the first batch of a shuffled epoch, or to the next one of a run?"""

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
    """Both sides in children, in which a small dataset was opened before."""
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
        "10^8 samples in 10,000 MDS shards",
        [
            row("open, shuffle, first batch", "s", columns(start, "seconds", "seconds"), streaming.NAME, TARGET_START),
            row("memory that it takes", "MB", memory, streaming.NAME, TARGET_MEMORY),
            row("open, resume at half an epoch", "s", columns(resume, "seconds", "seconds"), streaming.NAME),
            row("resume at half an epoch, opened before", "s", again, streaming.NAME, TARGET_RESUME),
        ],
        [
            "Shuffles: ours `Shuffle(seed=7)`, all samples mixed; the other's default, py1e. A resume of the other "
            "is a start with a state.",
            "All shards are names of one file of 60 KB, so that data are never waited for.",
        ],
    )


def first_batch(path: str, small: str, batch: int, resume_at: int) -> dict[str, float]:
    """In a child: seconds to open and read a batch, growth of the resident size, seconds to go to the state again."""
    import penstock as ps

    def loader(path: str) -> ps.Loader:
        return ps.Loader(ps.Shuffle(ps.open(path), seed=7), batch, rank=0, world=1, workers=0)

    def state_of(path: str, position: int) -> dict[str, Any]:
        stream = ps.Shuffle(ps.open(path), seed=7)
        return ps.Loader(stream, batch, rank=0, world=1, workers=0, start=position).state_dict()

    def go_on(of: ps.Loader, state: dict[str, Any] | None) -> float:
        began = time.perf_counter()
        if state is not None:
            of.load_state_dict(state)
        next(iter(of))
        return time.perf_counter() - began

    go_on(loader(small), None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = state_of(path, resume_at) if resume_at else None
    began = time.perf_counter()
    opened = loader(path)
    go_on(opened, state)
    seconds = time.perf_counter() - began
    # Where the peak of the start was not reached again, it grew by less than can be seen.
    grown_mb = max(0.1, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
    return {"seconds": seconds, "grown_mb": grown_mb, "again_s": go_on(opened, state)}


if __name__ == "__main__":
    answer(globals())

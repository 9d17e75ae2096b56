"""Does resuming late in a huge epoch take longer than resuming at its start?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import PYTHON, Options, Result, answer, child, row

N_POSITIONS = 10**12
LENGTH, BATCH = 2, 32
# Equally fast, with a margin for noise.
TARGET = 0.9
_RESUMES = 101


def run(_options: Options) -> Result:
    """Load states at 90% and at 0% of an epoch of 10^12 windows, in turn in one child process."""
    path = data.sparse_packed(N_POSITIONS + 1, 1)
    pairs = child(PYTHON, __file__, "resume", pbin=path, count=_RESUMES)
    return Result(
        "Resume in an epoch of 10^12 windows",
        [
            row(
                "resume at 90% and read the first batch of 32",
                "s",
                [tuple(pair) for pair in pairs],
                "resume at 0%",
                TARGET,
            )
        ],
        [
            "The file is sparse and has 10^12 + 1 tokens of one byte. Windows have two tokens and overlap by one. "
            "Opening the file is included.",
        ],
    )


def resume(pbin: str, count: int) -> list[tuple[float, float]]:
    """Return pairs of seconds at 90% and at 0%; runs in a child process."""
    import penstock as ps

    def loader(start: int = 0) -> ps.Loader:
        stream = ps.Shuffle(ps.Chunk(LENGTH, overlap=1)(ps.open(pbin)), seed=7)
        return ps.Loader(stream, BATCH, rank=0, world=1, start=start, workers=0)

    late, early = (loader(start).state_dict() for start in (N_POSITIONS * 9 // 10, 0))

    def seconds(state: dict[str, Any]) -> float:
        started = time.perf_counter()
        resumed = loader()
        resumed.load_state_dict(state)
        next(iter(resumed))
        return time.perf_counter() - started

    seconds(late)
    seconds(early)
    return [(seconds(late), seconds(early)) for _ in range(count)]


if __name__ == "__main__":
    answer(globals())

"""Does a resume late in a huge epoch take longer than a start?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import PYTHON, Options, Result, answer, child, row

N_POSITIONS = 10**12
LENGTH, BATCH = 2, 32
# No slower, as far as two equal things can be told apart on a noisy machine.
TARGET = 0.9
_RESUMES = 101


def run(_options: Options) -> Result:
    """A state loaded at 90 % and at 0 % of an epoch of 10^12 windows, in turn in one child."""
    path = data.sparse_packed(N_POSITIONS + 1, 1)
    pairs = child(PYTHON, __file__, "resume", pbin=path, count=_RESUMES)
    return Result(
        "Resume in an epoch of 10^12 windows, to the first batch of 32",
        [row("from a state at 90 %, from one at 0 %", "s", [tuple(pair) for pair in pairs], "start at 0 %", TARGET)],
        ["A file of 10^12 + 1 one-byte tokens with holes, in windows of two that share one. Opening is included."],
    )


def resume(pbin: str, count: int) -> list[tuple[float, float]]:
    """In a child: seconds at 90 %, and at 0 %."""
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

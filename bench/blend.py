"""How long does the order of a blend of 100 datasets take to compute, and finding a distant position in it?"""

from __future__ import annotations

import statistics
import time
from typing import Any

from harness import PYTHON, Options, Result, answer, child, limit

CHILDREN, AHEAD = 100, 1 << 16
TARGET_US, FAR = 2.0, 10**12
_LANES = (1, 8, 24)


def run(options: Options) -> Result:
    """Run one child process per number of lanes, without a peer."""
    rounds = 3 if options.quick else 15
    rows: list[Any] = []
    for lanes in _LANES:
        found = child(PYTHON, __file__, "order", lanes=lanes, rounds=rounds)
        label = f"{lanes} lane{'s' if lanes > 1 else ''}"
        rows += [
            limit(f"{label}, one rank", "µs per sample", found["one"], TARGET_US),
            limit(f"{label}, one of 8 ranks", "µs per sample", found["eighth"], TARGET_US if lanes > 1 else 4),
        ]
    found = child(PYTHON, __file__, "order", lanes=1, rounds=rounds)
    rows.append(limit("find one position near 10^12", "µs", found["locate"], 10_000))
    return Result(
        f"Compute the sample order of a blend of {CHILDREN} datasets",
        rows,
        [
            f"{AHEAD:,} positions per call, in blocks of 2^16. The weights are 1 to 100, and each dataset is a shuffle "
            "of a million samples. 'One rank' reads all positions, 'one of 8 ranks' every eighth; with one lane it "
            "computes eight times as many blocks."
        ],
    )


def order(lanes: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds per sample and per single position for each round; runs in a child process."""
    import numpy as np

    import penstock as ps

    children = {f"c{i}": ps.Shuffle(_Numbers(1_000_000 + i), i, lanes=lanes) for i in range(CHILDREN)}
    blend = ps.Blend(children, {f"c{i}": i + 1 for i in range(CHILDREN)}, 7)
    found: dict[str, list[float]] = {"one": [], "eighth": [], "locate": []}
    for number in range(rounds):
        for name, stride in (("one", 1), ("eighth", 8)):
            positions = FAR + stride * AHEAD * number + stride * np.arange(AHEAD, dtype=np.int64)
            started = time.perf_counter()
            blend.resolve(positions)
            found[name].append((time.perf_counter() - started) / AHEAD * 1e6)
        started = time.perf_counter()
        blend.locate(FAR + 10**9 * number)
        found["locate"].append((time.perf_counter() - started) * 1e6)
    # The first round includes imports and page faults.
    return {name: figures[1:] or [statistics.median(figures)] for name, figures in found.items()}


class _Numbers:
    """Placeholder dataset of `length` samples that are never read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def children(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    answer(globals())

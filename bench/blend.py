"""What does the order of a blend of 100 children cost, and a restore deep inside of it?"""

from __future__ import annotations

import statistics
import time
from typing import Any

from harness import PYTHON, Options, Result, answer, child, limit

CHILDREN, AHEAD = 100, 1 << 16
TARGET_US, FAR = 2.0, 10**12
_LANES = (1, 8, 24)


def run(options: Options) -> Result:
    """One child for each number of lanes; all figures stand alone."""
    rounds = 3 if options.quick else 15
    rows: list[Any] = []
    for lanes in _LANES:
        found = child(PYTHON, __file__, "order", lanes=lanes, rounds=rounds)
        rows += [
            limit(f"order, {lanes} lanes, one rank", "µs a sample", found["one"], TARGET_US),
            limit(
                f"order, {lanes} lanes, one rank of 8", "µs a sample", found["eighth"], TARGET_US if lanes > 1 else 4
            ),
        ]
    found = child(PYTHON, __file__, "order", lanes=1, rounds=rounds)
    rows.append(limit("locate one position near 10^12", "µs", found["locate"], 10_000))
    return Result(
        f"Order of a blend of {CHILDREN} children, {AHEAD:,} positions ahead",
        rows,
        [
            "Weights 1 to 100, a shuffle of a million samples each: blocks of 2^16 places. 'One rank' reads all "
            "positions, 'one rank of 8' every eighth: with one lane it works out eight times as many blocks."
        ],
    )


def order(lanes: int, rounds: int) -> dict[str, list[float]]:
    """In a child: microseconds a sample, round by round; and of a single position."""
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
    # The first round also pays for imports and page faults.
    return {name: figures[1:] or [statistics.median(figures)] for name, figures in found.items()}


class _Numbers:
    """As many samples as it says, none of which is read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def children(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    answer(globals())

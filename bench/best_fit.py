"""How long does it take to plan the packing of ten million documents, and how full are the windows?"""

from __future__ import annotations

import time
from typing import Any

from harness import PYTHON, Options, Result, answer, child, limit, row

DOCUMENTS = 10_000_000
LENGTHS = (2048, 8192)
MOST_SECONDS, TARGET_FILL = 10, 0.99
_MEAN_TOKENS, _SIGMA = 600, 1.2


def run(options: Options) -> Result:
    """Plan documents of log-normal length in a single-threaded child process."""
    rows = []
    for length in LENGTHS:
        found = [child(PYTHON, __file__, "plan", length=length) for _ in range(options.pairs(3))]
        windows = f"windows of {length:,}"
        rows.append(limit(f"time to plan, {windows}", "s", [one["seconds"] for one in found], MOST_SECONDS))
        fills = [(one["fill"], one["best"]) for one in found]
        rows.append(row(f"share of positions filled, {windows}", "", fills, "fewest possible windows", TARGET_FILL))
        rows.append(limit(f"size of the plan, {windows}", "bytes per document", [found[0]["bytes"]], 24))
    return Result(
        "Best-fit packing of 10 M documents",
        rows,
        [
            f"Document lengths are log-normal with a mean of {_MEAN_TOKENS} tokens and sigma {_SIGMA}. Documents "
            "longer than a window are cut into whole windows and a remainder.",
            "Fewest possible windows: all tokens in full windows, a bound that packing whole documents may not reach.",
        ],
    )


def plan(length: int) -> dict[str, Any]:
    """Return seconds, share of positions filled, that share's upper bound, and bytes per document."""
    import numpy as np

    from penstock.pack.best_fit import plan_windows

    rng = np.random.default_rng(7)
    lengths = rng.lognormal(np.log(_MEAN_TOKENS) - _SIGMA**2 / 2, _SIGMA, DOCUMENTS).astype(np.int64) + 1
    doc_starts = np.concatenate([[0], np.cumsum(lengths)])
    started = time.process_time()
    found = plan_windows(doc_starts, length)
    seconds = time.process_time() - started
    tokens, windows = int(doc_starts[-1]), len(found.window_starts) - 1
    kept_bytes = found.window_starts.nbytes + found.piece_starts.nbytes + found.piece_lengths.nbytes
    return {
        "seconds": seconds,
        "fill": tokens / (windows * length),
        "best": tokens / (-(-tokens // length) * length),
        "bytes": kept_bytes / DOCUMENTS,
    }


if __name__ == "__main__":
    answer(globals())

"""How long does it take to create FlexAttention's block mask, compared with torch?"""

from __future__ import annotations

import time
from typing import Any

from harness import PYTHON, Options, Result, alternate, answer, child, columns, row

SAMPLES, MEAN = 4, 300
LENGTHS = (1024, 2048)


def run(options: Options) -> Result:
    """Run pairs of child processes; imports aren't timed."""
    rows = []
    for length in LENGTHS:
        found = alternate(
            lambda n=length: child(PYTHON, __file__, "ours", length=n),
            lambda n=length: child(PYTHON, __file__, "theirs", length=n),
            options.pairs(3),
        )
        name = f"{SAMPLES} windows of {length:,} tokens"
        rows.append(row(name, "s", columns(found, "seconds", "seconds"), "torch create_block_mask"))
    note = "On the CPU. create_block_mask calls its mask function for each pair of tokens. Both masks are equal."
    return Result("Block masks for FlexAttention", rows, [note])


def ours(length: int) -> dict[str, Any]:
    """Create the mask from segment ids; runs in a child process."""
    from penstock.load.torch import block_mask

    batch = {"segment_ids": _ids(length)}
    return _best(lambda: block_mask(batch))


def theirs(length: int) -> dict[str, Any]:
    """Create the mask as torch's documentation does for packed documents; runs in a child process."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids = _ids(length)

    def rule(b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (ids[b, q] == ids[b, k])

    return _best(lambda: create_block_mask(rule, SAMPLES, None, length, length, device="cpu"))


def _ids(length: int) -> Any:
    import numpy as np
    import torch

    begins = np.random.default_rng(0).random((SAMPLES, length)) < 1 / MEAN
    return torch.from_numpy(np.cumsum(begins, 1).astype(np.int32) + 1)


def _best(make: Any) -> dict[str, Any]:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        make()
        best = min(best, time.perf_counter() - started)
    return {"seconds": best}


if __name__ == "__main__":
    answer(globals())

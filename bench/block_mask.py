"""How long does FlexAttention's mask of a batch take, beside torch's own way to make it?"""

from __future__ import annotations

import time
from typing import Any

from harness import PYTHON, Options, Result, alternate, answer, child, columns, row

SAMPLES, MEAN = 4, 300
LENGTHS = (1024, 2048)


def run(options: Options) -> Result:
    """Pairs of children, without the imports."""
    rows = []
    for length in LENGTHS:
        found = alternate(
            lambda n=length: child(PYTHON, __file__, "ours", length=n),
            lambda n=length: child(PYTHON, __file__, "theirs", length=n),
            options.pairs(3),
        )
        name = f"block_mask of {SAMPLES} windows of {length:,} tokens"
        rows.append(row(name, "s", columns(found, "seconds", "seconds"), "torch's create_block_mask"))
    note = (
        "On the processor. create_block_mask asks its function for each pair of tokens; both masks are equal (tested)."
    )
    return Result("Masks for FlexAttention", rows, [note])


def ours(length: int) -> dict[str, Any]:
    """In a child: from segment ids."""
    from penstock.load.torch import block_mask

    batch = {"segment_ids": _ids(length)}
    return _best(lambda: block_mask(batch))


def theirs(length: int) -> dict[str, Any]:
    """In a child: the recipe of torch's documentation for packed documents."""
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

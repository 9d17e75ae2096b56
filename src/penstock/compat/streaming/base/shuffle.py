"""The original's `streaming.base.shuffle`, under the same name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.order.compat.streaming.shuffle import shuffled_ids
from penstock.types import IntArray


def get_shuffle(
    algo: str, shard_sizes: IntArray, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> NDArray[np.int64]:
    """int64[samples]: the samples of all shards in the order in which an epoch takes them.

    Args:
        algo: `naive`, `py1s`, `py2s`, `py1br` or `py1e`.
        shard_sizes: int64[k]: samples of each shard.
        num_canonical_nodes: parts that are shuffled apart.
        seed: of the run.
        epoch: from 0.
        block_size: about how far `py1br` and `py1e` move a sample.

    Raises:
        ConfigError: an unknown algorithm, or a block too small.
    """
    sizes = np.asarray(shard_sizes, np.int64)
    return shuffled_ids(algo, sizes, num_canonical_nodes, seed, epoch, block_size).astype(np.int64)

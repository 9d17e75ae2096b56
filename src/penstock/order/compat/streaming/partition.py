"""Bit-exact assignment of an epoch's samples to nodes and ranks, as in MosaicML Streaming.

An epoch is a *grid* here, `[steps, ranks]`: row s has the s-th sample of each rank, with ranks counted over all
nodes. Rank r's batch g is `grid[g·B : (g + 1)·B, r]`, and worker `g mod W` reads it. The concatenated grid is the
order in which the run reads samples; Penstock's loader gives rank r of W positions `p ≡ r (mod W)`, which is column r.

The original's shape `[nodes, ranks, workers, batches, batch]` is another view of the same grid: see `as_original`.

`orig`, for n ids over C canonical nodes and P nodes:

1. id `floor(c·n / C)` begins row c; all rows have ceil(n / C) columns, shorter ones repeat their last id.
2. If C < P, rows grow to a multiple of P / C, by repeating earlier columns.
3. Columns are read one after another; place j of that sequence goes to node `j mod P`.
4. Each node's ids are assigned to its ranks in turn, a few earlier ones repeated to make them even, and filled up with
   padding to whole batches for every worker.

`relaxed` is `orig` unless a run resumes with a number of nodes that neither divides C nor is divided by it. Then the
global batches of the original number of nodes are preserved, and assigned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.order.compat.streaming.shuffle import UnknownAlgorithm
from penstock.types import IntArray

# Rows of the matrix of canonical nodes that are filled at a time, so that they stay in the CPU's cache.
_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: int
    ranks_per_node: int
    workers: int
    batch: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        return self.ranks * self.batch


def padding_of(dtype: np.dtype[Any]) -> Any:
    """Return the padding value: -1, or the largest value of an unsigned type."""
    return np.iinfo(dtype).max if dtype.kind == "u" else -1


def steps_of(n: int, canonical_nodes: int, cluster: Cluster, drop_first: int = 0) -> int:
    """Return the samples of a rank in an epoch of n ids, without padding.

    Raises:
        ConfigError: the numbers of nodes don't divide each other.
    """
    _check_nodes(canonical_nodes, cluster.nodes)
    total = canonical_nodes * _columns(n, canonical_nodes, cluster.nodes)
    per_node = max(0, total - drop_first + drop_first % cluster.nodes) // cluster.nodes
    return -(-per_node // cluster.ranks_per_node)


def partition(ids: NDArray[Any], canonical_nodes: int, cluster: Cluster, drop_first: int = 0) -> NDArray[Any]:
    """Return [steps, ranks]: the grid of `orig` without padding.

    Takes as much memory again as `ids`, twice with several canonical nodes and several nodes with ranks.

    Args:
        ids: uint32[n] or int64[n], in the order of the epoch; at least one.
        canonical_nodes: parts of the ids, each read from its start.
        cluster: nodes and ranks.
        drop_first: samples to skip at the start, rounded down to a multiple of the nodes.

    Raises:
        ConfigError: the numbers of nodes don't divide each other, or there are too few ids.
    """
    nodes, ranks = cluster.nodes, cluster.ranks_per_node
    _check_nodes(canonical_nodes, nodes)
    matrix = _matrix(ids, canonical_nodes, nodes)
    del ids
    rows = matrix.reshape(-1)[drop_first - drop_first % nodes :].reshape(-1, nodes)
    del matrix
    missing = -len(rows) % ranks
    if missing:
        rows = np.concatenate([rows, rows[_repeated(len(rows), ranks, missing)]])
    return rows.reshape(-1, ranks, nodes).transpose(0, 2, 1).reshape(-1, nodes * ranks)


def relaxed_batches(
    ids: NDArray[Any], canonical_nodes: int, cluster: Cluster, drop_first: int, first_nodes: int
) -> NDArray[Any]:
    """Return [batches, ranks, batch]: the global batches of `first_nodes` nodes for the cluster, with padding.

    The first nodes' ranks must divide the global batch.
    """
    first_ranks = first_nodes * cluster.ranks_per_node
    batch = cluster.global_batch // first_ranks
    first = Cluster(first_nodes, cluster.ranks_per_node, cluster.workers, batch)
    grid = padded(partition(ids, canonical_nodes, first, drop_first), batch * cluster.workers)
    return grid.reshape(-1, batch, first_ranks).transpose(0, 2, 1).reshape(-1, cluster.ranks, cluster.batch)


def is_relaxed(algo: str, canonical_nodes: int, nodes: int, first_nodes: int | None) -> bool:
    """Return whether `relaxed` differs from `orig` here.

    Raises:
        ConfigError: the algorithm is unknown.
    """
    if algo not in ("orig", "relaxed"):
        raise UnknownAlgorithm("unknown partition_algo", found=repr(algo), expected="'orig' or 'relaxed'")
    return algo == "relaxed" and first_nodes is not None and not _divide(canonical_nodes, nodes)


def grid_of(batches: NDArray[Any]) -> NDArray[Any]:
    """Return [batches · batch, ranks]: the grid of `[batches, ranks, batch]`."""
    return batches.transpose(0, 2, 1).reshape(-1, batches.shape[1])


def padded(grid: NDArray[Any], multiple: int) -> NDArray[Any]:
    """Return the grid with rows of padding up to a multiple."""
    missing = -len(grid) % multiple
    if not missing:
        return grid
    return np.concatenate([grid, np.full((missing, grid.shape[1]), padding_of(grid.dtype), grid.dtype)])


def as_original(grid: NDArray[Any], cluster: Cluster) -> IntArray:
    """Return int64[nodes, ranks, workers, batches, batch]: a padded grid in the original's shape, padded with -1."""
    shape = (-1, cluster.workers, cluster.batch, cluster.nodes, cluster.ranks_per_node)
    ids = grid.astype(np.int64)
    ids[grid == padding_of(grid.dtype)] = -1
    return ids.reshape(shape).transpose(3, 4, 1, 0, 2)


def _columns(n: int, canonical_nodes: int, nodes: int) -> int:
    """Return the number of ids per canonical node, including repeats."""
    columns = -(-n // canonical_nodes)
    return columns + -columns % (nodes // canonical_nodes) if canonical_nodes < nodes else columns


def _matrix(ids: NDArray[Any], canonical_nodes: int, nodes: int) -> NDArray[Any]:
    """Return [columns, canonical_nodes]: each canonical node's ids, down a column."""
    n, width = len(ids), _columns(len(ids), canonical_nodes, nodes)
    if n < canonical_nodes or n == canonical_nodes < nodes:
        return np.resize(ids, (canonical_nodes, width)).T
    if width == n:
        return ids[:, None]
    matrix = np.empty((width, canonical_nodes), dtype=ids.dtype)
    begins = [part * n // canonical_nodes for part in range(canonical_nodes + 1)]
    whole = -(-n // canonical_nodes)
    for first in range(0, whole, _ROWS):
        for part, (begin, end) in enumerate(pairwise(begins)):
            run = ids[begin + first : min(begin + first + _ROWS, end)]
            matrix[first : first + len(run), part] = run
    for part, (begin, end) in enumerate(pairwise(begins)):
        matrix[end - begin : whole, part] = ids[end - 1]
    extra = width - whole
    if extra:
        stop = width - extra - nodes // canonical_nodes + 1
        # A place before the start counts from the end in the original, so it finds nothing to repeat.
        source = matrix[max(0, stop - extra) : max(0, stop)]
        if len(source) not in (1, extra):
            raise ConfigError(
                "too few samples for this many nodes",
                found=f"{n} samples, num_canonical_nodes={canonical_nodes}, {nodes} nodes",
            )
        matrix[whole:] = source
    return matrix


def _repeated(n: int, ranks: int, missing: int) -> NDArray[Any] | slice:
    """Return which of n rows are repeated at the end, so that ranks have equally many."""
    if ranks + missing - 1 <= n:
        return slice(n - ranks - missing + 1, n - ranks + 1)
    return np.resize(np.arange(n), missing)


def _divide(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0


def _check_nodes(canonical_nodes: int, nodes: int) -> None:
    if not _divide(canonical_nodes, nodes):
        raise ConfigError(
            "one of canonical and physical nodes must divide the other",
            found=f"num_canonical_nodes={canonical_nodes}, {nodes} nodes",
        )

"""The nodes, ranks and workers of a run: the original's `streaming.base.world` and `streaming.base.distributed`.

The original's collectives are missing, as datasets need none. Use torch's own.
"""

from __future__ import annotations

import os
from typing import Any, Self

from penstock.errors import ConfigError


def get_rank() -> int:
    """Return RANK, or 0."""
    return int(os.environ.get("RANK", 0))


def get_world_size() -> int:
    """Return WORLD_SIZE, or 1."""
    return int(os.environ.get("WORLD_SIZE", 1))


def get_local_rank() -> int:
    """Return LOCAL_RANK, or 0."""
    return int(os.environ.get("LOCAL_RANK", 0))


def get_local_world_size() -> int:
    """Return LOCAL_WORLD_SIZE, or 1."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


class World:
    """Position of a process in a run. `num_nodes`, `num_ranks` and `num_workers` count the whole run.

    Args:
        num_nodes: number of nodes.
        ranks_per_node: ranks of each node.
        workers_per_rank: DataLoader workers of each rank; 1 if a rank has no workers.
        worker: number of this worker among all.
    """

    def __init__(self, num_nodes: int, ranks_per_node: int, workers_per_rank: int, worker: int) -> None:
        self.num_nodes = num_nodes
        self.ranks_per_node = ranks_per_node
        self.workers_per_rank = workers_per_rank
        self.worker = worker
        self.num_ranks = num_nodes * ranks_per_node
        self.workers_per_node = ranks_per_node * workers_per_rank
        self.num_workers = num_nodes * self.workers_per_node
        self.is_multinode = num_nodes > 1
        self.node, self.worker_of_node = divmod(worker, self.workers_per_node)
        self.rank, self.worker_of_rank = divmod(worker, workers_per_rank)
        self.rank_of_node = self.rank % ranks_per_node
        self.is_leader = worker == 0
        self.is_local_leader = self.worker_of_node == 0

    @classmethod
    def detect(cls) -> Self:
        """Detect the world from RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the DataLoader worker of this process."""
        per_node = get_local_world_size()
        return cls(get_world_size() // per_node, per_node, *_workers(get_rank()))

    def detect_workers(self) -> Self:
        """Return the same world with the worker of this process."""
        return type(self)(self.num_nodes, self.ranks_per_node, *_workers(self.rank))

    def replicate(self, replication: int) -> Self:
        """Return the world in which `replication` consecutive ranks count as one.

        Raises:
            ConfigError: `replication` doesn't divide the ranks.
        """
        if replication < 1 or self.num_ranks % replication:
            raise ConfigError("replication must divide the ranks", found=f"{replication} of {self.num_ranks}")
        ranks = self.num_ranks // replication
        nodes = ranks // self.ranks_per_node if ranks % self.ranks_per_node == 0 else 1
        worker = self.rank // replication * self.workers_per_rank + self.worker_of_rank
        return type(self)(nodes, ranks // nodes, self.workers_per_rank, worker)

    def copy(self) -> Self:
        """Return a copy."""
        return type(self)(self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker)

    def to_json(self) -> dict[str, Any]:
        """Return all attributes."""
        return dict(vars(self))


def _workers(rank: int) -> tuple[int, int]:
    """Return the workers per rank, and the number of this one among all workers."""
    from penstock.compat.torch_bases import worker_info  # imports torch

    info = worker_info()
    mine, of_rank = (info.id, info.num_workers) if info else (0, 1)
    return of_rank, rank * of_rank + mine

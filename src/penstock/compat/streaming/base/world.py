"""The original's `streaming.base.world`: the nodes, ranks and workers of a run."""

from __future__ import annotations

from typing import Any, Self

from penstock.compat.streaming.base import distributed
from penstock.compat.streaming.bases import worker_info
from penstock.errors import ConfigError

__all__ = ["World"]


class World:
    """Where a process is. `num_nodes`, `num_ranks` and `num_workers` are of the whole run.

    Args:
        num_nodes: nodes.
        ranks_per_node: ranks of each.
        workers_per_rank: DataLoader workers of each rank; 1 where a rank reads by itself.
        worker: number of this one among all.
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
        """Of RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, and of the DataLoader worker that this process is."""
        per_node = distributed.get_local_world_size()
        return cls(distributed.get_world_size() // per_node, per_node, *_workers(distributed.get_rank()))

    def detect_workers(self) -> Self:
        """The same with the worker that this process is."""
        return type(self)(self.num_nodes, self.ranks_per_node, *_workers(self.rank))

    def replicate(self, replication: int) -> Self:
        """The world in which so many ranks in a row are one.

        Raises:
            ConfigError: the ranks can't be divided by it.
        """
        if replication < 1 or self.num_ranks % replication:
            raise ConfigError("replication must divide the ranks", found=f"{replication} of {self.num_ranks}")
        ranks = self.num_ranks // replication
        nodes = ranks // self.ranks_per_node if ranks % self.ranks_per_node == 0 else 1
        worker = self.rank // replication * self.workers_per_rank + self.worker_of_rank
        return type(self)(nodes, ranks // nodes, self.workers_per_rank, worker)

    def copy(self) -> Self:
        """The same once more."""
        return type(self)(self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker)

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return dict(vars(self))


def _workers(rank: int) -> tuple[int, int]:
    """The workers of a rank, and the number of this one among all."""
    info = worker_info()
    mine, of_rank = (info.id, info.num_workers) if info else (0, 1)
    return of_rank, rank * of_rank + mine

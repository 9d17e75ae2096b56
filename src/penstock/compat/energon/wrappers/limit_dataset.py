"""`LimitDataset`."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset


class LimitDataset(BaseWrapperDataset[T_sample]):
    """Dataset of the first samples of another one, the same in each pass.

    Args:
        dataset: the samples.
        length: number of samples on this rank, divided among its workers.
        reset_after_epoch: no effect: the dataset starts over after each pass in any case.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import LimitDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> first = LimitDataset(samples, 2, worker_config=config)
        >>> [sample.caption for sample in get_loader(first)]
        ['picture 0', 'picture 1']
    """

    def __init__(
        self, dataset: SavableDataset[Any], length: int, *, reset_after_epoch: bool = False, worker_config: WorkerConfig
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length
        self.reset_after_epoch = reset_after_epoch

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: samples left in the lane's share, and the inner place."""
        left, below = (lane.share(self.length), None) if place is None else place
        walk = Walk(self.dataset, lane, below)
        while left > 0:
            try:
                sample = next(walk)
            except StopIteration:
                break
            left -= 1
            yield sample, (left, walk.place)
        walk.close()
        return None

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; the remaining samples are divided."""
        if place is None:
            return None
        left, below = place
        return left // parts + (part < left % parts), self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the worker's share of the samples."""
        workers, worker = max(1, self.worker_config.num_workers), worker_idx or 0
        return min(self.dataset.len_worker(worker_idx), self.length // workers + (worker < self.length % workers))

    def len_rank(self) -> int:
        """Return the number of samples of this rank in a pass."""
        return min(self.length, self.dataset.len_rank())

    def settings(self) -> dict[str, Any]:
        """Return the length."""
        return {"length": self.length}

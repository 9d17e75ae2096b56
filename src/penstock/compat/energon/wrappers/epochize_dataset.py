"""`EpochizeDataset`."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset


class EpochizeDataset(BaseWrapperDataset[T_sample]):
    """Dataset in epochs of a fixed length.

    An iteration ends after `length` samples, and the next one continues.

    Args:
        dataset: the samples, finite or endless.
        length: samples per iteration on this rank, divided among its workers.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import EpochizeDataset, RepeatDataset, WorkerConfig
        >>> from penstock.compat.energon import get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> endless = RepeatDataset(samples, worker_config=config)
        >>> loader = get_loader(EpochizeDataset(endless, 4, worker_config=config))
        >>> [sample.__key__ for sample in loader]
        ['000', '001', '002', '003']
        >>> [sample.__key__ for sample in loader]
        ['004', '005', '000', '001']
    """

    def __init__(self, dataset: SavableDataset[Any], length: int, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: samples left in the lane's share (None: all), and the inner place."""
        left, below = (None, None) if place is None else place
        left = lane.share(self.length) if left is None else left
        walk = Walk(self.dataset, lane, below)
        while left > 0:
            try:
                sample = next(walk)
            except StopIteration:
                return None, walk.end
            left -= 1
            yield sample, (left, walk.place)
        walk.close()
        return None, walk.place

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; the remaining samples are divided."""
        left, below = (None, None) if place is None else place
        share = None if left is None else left // parts + (part < left % parts)
        return share, self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the worker's share of the samples."""
        workers, worker = max(1, self.worker_config.num_workers), worker_idx or 0
        return self.length // workers + (worker < self.length % workers)

    def settings(self) -> dict[str, Any]:
        """Return the length."""
        return {"length": self.length}

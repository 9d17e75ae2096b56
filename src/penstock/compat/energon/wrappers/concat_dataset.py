"""`ConcatDataset`."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, split_all


class ConcatDataset(BaseWrapperDataset[T_sample]):
    """Concatenation of finite datasets.

    Args:
        datasets: datasets in order.
        worker_config: config of the datasets.

    Examples:
        >>> from penstock.compat.energon import ConcatDataset, LimitDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> first = LimitDataset(samples, 2, worker_config=config)
        >>> both = ConcatDataset(first, samples, worker_config=config)
        >>> [sample.__key__ for sample in get_loader(both)]
        ['000', '001', '000', '001', '002', '003', '004', '005']
    """

    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig) -> None:
        super().__init__(datasets, worker_config=worker_config)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: the next dataset, and the places of all."""
        first, places = (0, (None,) * len(self.datasets)) if place is None else place
        places = list(places)
        for number in range(first, len(self.datasets)):
            walk = Walk(self.datasets[number], lane, places[number])
            for sample in walk:
                places[number] = walk.place
                yield sample, (number, tuple(places))
            places[number] = walk.end
        return 0, tuple(places)

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part: each dataset's place, split."""
        first, places = (0, (None,) * len(self.datasets)) if place is None else place
        return first, split_all(self.datasets, places, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all datasets."""
        return sum(one.len_worker(worker_idx) for one in self.datasets)

"""`GcDataset`."""

from __future__ import annotations

import gc
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset
from penstock.compat.unused import say_unused


class GcDataset(BaseWrapperDataset[T_sample]):
    """Dataset that collects garbage after a number of samples.

    Args:
        dataset: the samples.
        worker_config: config of the dataset.
        every_n_iter: samples of a lane between two collections.
        freeze: ignored, with a log message if it is False: workers are threads of the training process, whose objects a
            dataset must not freeze.

    Examples:
        >>> from penstock.compat.energon import GcDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> collected = GcDataset(samples, worker_config=config, every_n_iter=3)
        >>> [sample.__key__ for sample in get_loader(collected)]
        ['000', '001', '002', '003', '004', '005']
    """

    def __init__(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig, every_n_iter: int = 10, freeze: bool = True
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        say_unused("GcDataset", "objects are never frozen", {"freeze": freeze}, {"freeze": True})
        self.every_n_iter = every_n_iter
        self.freeze = freeze

    def around(self, dataset: SavableDataset[Any]) -> GcDataset[Any]:
        """Return the same wrapper around another dataset."""
        return GcDataset(dataset, worker_config=self.worker_config, every_n_iter=self.every_n_iter, freeze=self.freeze)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place, which is that of the inner dataset."""
        walk = Walk(self.dataset, lane, place)
        for number, sample in enumerate(walk, 1):
            yield sample, walk.place
            if number % self.every_n_iter == 0:
                gc.collect()
        return walk.end

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part of the inner dataset."""
        return self.dataset.split(place, part, parts)

    def identity(self) -> list[Any]:
        """Return the identity of the inner dataset, because samples don't change."""
        return self.dataset.identity()

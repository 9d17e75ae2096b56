"""`ShuffleBufferDataset`."""

from __future__ import annotations

import random
from typing import Any

from penstock._digest import derive_key
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset
from penstock.compat.energon.wrappers.windows import START, Window, split_window, take
from penstock.errors import ConfigError


class ShuffleBufferDataset(BaseWrapperDataset[T_sample]):
    """Dataset that shuffles the samples of a lane within a buffer.

    The next buffer is read once one has been delivered.

    Args:
        dataset: the samples.
        size: number of samples that are shuffled together.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import ShuffleBufferDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> shuffled = ShuffleBufferDataset(samples, 3, worker_config=config)
        >>> [sample.__key__ for sample in get_loader(shuffled)]
        ['000', '002', '001', '005', '003', '004']
    """

    def __init__(self, dataset: SavableDataset[Any], size: int, *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if size < 1:
            raise ConfigError("a shuffle buffer needs at least one sample", found=size)
        self.size = size

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place; see `windows` for its form."""
        number, below, done, after = START if place is None else place
        while True:
            window = self._window(lane, number, below)
            after = window.after if after is None else after
            for count, sample in enumerate(window.samples[done:], done + 1):
                whole = count == len(window.samples)
                yield sample, (number + 1, after, 0, None) if whole else (number, below, count, after)
            number, below, done, after = number + 1, after, 0, None
            if not window.samples:
                return number, window.end, 0, None

    def _window(self, lane: Lane, number: int, below: Place) -> Window:
        """A window, shuffled."""
        window = take(self.dataset, lane, below, self.size)
        random.Random(derive_key(lane.seed, "shuffle", lane.number, number)).shuffle(window.samples)
        return window

    def split(self, place: Place, part: int, parts: int) -> Place:
        """See `windows`."""
        return split_window(self.dataset, place, part, parts)

    def settings(self) -> dict[str, Any]:
        """Return the size."""
        return {"size": self.size}

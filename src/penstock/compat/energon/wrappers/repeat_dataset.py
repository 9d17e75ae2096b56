"""`RepeatDataset`."""

from __future__ import annotations

import math
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset
from penstock.errors import ConfigError

_START = (0, 0, None)


class RepeatDataset(BaseWrapperDataset[T_sample]):
    """Dataset that repeats a finite one.

    Args:
        dataset: the samples.
        repeats: number of repetitions; a fraction is a part of a pass. None: endless.
        restart: start over after an iteration has ended; otherwise the next iteration is empty.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import RepeatDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> repeated = RepeatDataset(samples, repeats=1.5, worker_config=config)
        >>> [sample.__key__ for sample in get_loader(repeated)]
        ['000', '001', '002', '003', '004', '005', '000', '001', '002']
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.repeats = repeats
        self.restart = restart

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: completed passes, samples of this one, and the inner place."""
        passes, taken, below = _START if place is None else place
        repeats = math.inf if self.repeats is None else self.repeats
        while passes < repeats:
            length = self.dataset.len_worker(lane.turn)
            most = math.floor(length * (repeats - passes) + 1e-9) if repeats - passes < 1 else math.inf
            walk = Walk(self.dataset, lane, below)
            while taken < most:
                try:
                    sample = next(walk)
                except StopIteration:
                    break
                taken += 1
                yield sample, (passes, taken, walk.place)
            if taken == 0 and repeats == math.inf:
                raise ConfigError("a dataset without samples can't be repeated", found=str(self.dataset))
            below = walk.place if taken >= most else walk.end
            walk.close()
            passes, taken = passes + 1, 0
        return 0 if self.restart else math.ceil(repeats), 0, below

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; the pass is divided."""
        passes, taken, below = _START if place is None else place
        return passes, taken // parts, self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all passes, or of one pass if endless."""
        length = self.dataset.len_worker(worker_idx)
        return length if self.repeats is None else int(length * self.repeats)

    def settings(self) -> dict[str, Any]:
        """Return the number of repetitions."""
        return {"repeats": self.repeats}

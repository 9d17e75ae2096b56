"""`BatchDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import START, BaseWrapperDataset, Calls, given, name_of, results, split_call
from penstock.errors import ConfigError


class BatchDataset(BaseWrapperDataset[T_sample]):
    """Dataset of batches of a fixed number of samples; the last batch of a lane may be smaller.

    Args:
        dataset: the samples.
        batch_size: size of a full batch.
        batcher: function from samples to a batch, or a generator of batches. May raise `SkipSample`.
        batcher_stateless: the result depends only on the samples.
        batcher_config: recorded in `config`.
        drop_last: drop a last batch that isn't full.
        failure_tolerance: number of consecutive batches that may fail; 0 for any number.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import BatchDataset, MapDataset, WorkerConfig
        >>> from penstock.compat.energon import batch_list, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> batches = BatchDataset(captions, 4, batch_list, worker_config=config)
        >>> list(get_loader(batches))
        [['picture 0', 'picture 1', 'picture 2', 'picture 3'], ['picture 4', 'picture 5']]
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Any = None,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if batch_size < 1:
            raise ConfigError("a batch needs at least one sample", found=batch_size)
        self.batch_size = batch_size
        self.batcher = batcher
        self.batcher_stateless = batcher_stateless
        self.batcher_config = batcher_config
        self.drop_last = drop_last
        self._calls = Calls(batcher, worker_config, failure_tolerance)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place; see `START` for its form."""
        calls, below, done = START if place is None else place
        walk = Walk(self.dataset, lane, below)
        ended = False
        while not ended:
            before, samples = walk.place, list[Any]()
            while len(samples) < self.batch_size and not ended:
                try:
                    samples.append(next(walk))
                except StopIteration:
                    ended = True
            if not samples or (ended and self.drop_last):
                continue
            yield from results(self._calls, samples, lane, (calls, before, done), walk.place)
            calls, done = calls + 1, 0
        return calls, walk.end, 0

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; only the first continues inside a batch's results."""
        return split_call(self.dataset, place, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of batches of a worker."""
        samples = self.dataset.len_worker(worker_idx)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def can_restore_sample(self) -> bool:
        """Return whether the function is stateless and the inner datasets can restore samples."""
        return self.batcher_stateless and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Return size and function."""
        named = {"batch_size": self.batch_size, "batcher": name_of(self.batcher), "drop_last": self.drop_last}
        return {**named, **given("batcher_config", self.batcher_config)}

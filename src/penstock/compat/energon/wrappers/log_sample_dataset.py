"""`LogSampleDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from penstock._secrets import logger
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset

_log = logger("penstock.energon")


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """The keys of a batch or sample; None where it has none."""
    found = batch.get("__key__") if isinstance(batch, dict) else getattr(batch, "__key__", None)
    if isinstance(found, str):
        return [found]
    return [str(one) for one in found] if isinstance(found, (list, tuple)) else None


class LogSampleDataset(BaseWrapperDataset[T_sample]):
    """Dataset that logs the keys of every sample, at level INFO of the logger `penstock.energon`.

    Args:
        dataset: the samples.
        mode: `"train"` or `"val"`, for the log.
        worker_config: config of the dataset.
        get_keys_fn: function from a sample to its keys.

    Examples:
        >>> from penstock.compat.energon import LogSampleDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> logged = LogSampleDataset(samples, "val", config)
        >>> next(iter(get_loader(logged))).caption
        'picture 0'
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig,
        get_keys_fn: Callable[[Any], list[str] | None] = default_get_batch_keys,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode: Literal["train", "val"] = mode
        self.get_keys_fn = get_keys_fn

    def around(self, dataset: SavableDataset[Any]) -> LogSampleDataset[Any]:
        """Return the same wrapper around another dataset."""
        return LogSampleDataset(dataset, self.mode, self.worker_config, self.get_keys_fn)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: samples so far, and the inner place."""
        step, below = (0, None) if place is None else place
        walk = Walk(self.dataset, lane, below)
        for sample in walk:
            where = (self.mode, self.worker_config.rank, lane.number, step)
            _log.info("%s: rank %d, lane %d, sample %d: %s", *where, self.get_keys_fn(sample))
            step += 1
            yield sample, (step, walk.place)
        return step, walk.end

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part of the inner dataset."""
        step, below = (0, None) if place is None else place
        return step, self.dataset.split(below, part, parts)

    def identity(self) -> list[Any]:
        """Return the identity of the inner dataset, because samples don't change."""
        return self.dataset.identity()

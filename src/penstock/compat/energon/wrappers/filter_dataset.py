"""`FilterDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig, current_batch, working_on
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, given, name_of


class FilterDataset(BaseWrapperDataset[T_sample]):
    """Dataset of the samples for which a function returns true.

    Args:
        dataset: the samples.
        filter_fn: function that returns whether to keep a sample.
        filter_fn_config: recorded in `config`.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import FilterDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> even = FilterDataset(samples, filter_fn=lambda sample: int(sample.__key__) % 2 == 0, worker_config=config)
        >>> [sample.caption for sample in get_loader(even)]
        ['picture 0', 'picture 2', 'picture 4']
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        filter_fn: Callable[[Any], bool],
        filter_fn_config: Any = None,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.filter_fn = filter_fn
        self.filter_fn_config = filter_fn_config

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: calls so far, and the inner place."""
        calls, below = (0, None) if place is None else place
        walk = Walk(self.dataset, lane, below)
        for sample in walk:
            number, index = calls * lane.count + lane.number, calls * lane.turns + lane.turn
            with working_on(self.worker_config, number, current_batch(), index):
                taken = self.filter_fn(sample)
            calls += 1
            if taken:
                yield sample, (calls, walk.place)
        return calls, walk.end

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part of the inner dataset."""
        calls, below = (0, None) if place is None else place
        return calls, self.dataset.split(below, part, parts)

    def settings(self) -> dict[str, Any]:
        """Return the function."""
        return {"filter_fn": name_of(self.filter_fn), **given("filter_fn_config", self.filter_fn_config)}

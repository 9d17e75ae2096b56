"""`MapDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import START, BaseWrapperDataset, Calls, given, name_of, results, split_call


class MapDataset(BaseWrapperDataset[T_sample]):
    """Dataset that applies a function to every sample.

    Args:
        dataset: the samples.
        map_fn: function from one sample to one, or to a generator of any number. May raise `SkipSample`.
        stateless_map_fn: the result depends only on the sample, so samples can be made again by their keys.
        map_fn_config: recorded in `config`.
        failure_tolerance: number of consecutive samples that may fail; 0 for any number.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import MapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> list(get_loader(captions))[:2]
        ['picture 0', 'picture 1']
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], Any],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: Any = None,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.map_fn = map_fn
        self.stateless_map_fn = stateless_map_fn
        self.map_fn_config = map_fn_config
        self._calls = Calls(map_fn, worker_config, failure_tolerance)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place; see `START` for its form."""
        calls, below, done = START if place is None else place
        walk = Walk(self.dataset, lane, below)
        before = below
        for sample in walk:
            yield from results(self._calls, sample, lane, (calls, before, done), walk.place)
            calls, before, done = calls + 1, walk.place, 0
        return calls, walk.end, 0

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; only the first continues inside a sample's results."""
        return split_call(self.dataset, place, part, parts)

    def can_restore_sample(self) -> bool:
        """Return whether the function is stateless and the inner datasets can restore samples."""
        return self.stateless_map_fn and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Return the function."""
        return {"map_fn": name_of(self.map_fn), **given("map_fn_config", self.map_fn_config)}

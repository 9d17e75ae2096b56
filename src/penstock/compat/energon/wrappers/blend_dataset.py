"""`BlendDataset`."""

from __future__ import annotations

from typing import Any

from penstock._digest import derive_key
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, split_all
from penstock.errors import ConfigError


class BlendDataset(BaseWrapperDataset[T_sample]):
    """Dataset that draws samples from several datasets by weight.

    Finite datasets are read until all have ended.

    Args:
        dataset_weights: (dataset, weight) pairs.
        worker_config: config of the datasets.

    Raises:
        ConfigError: a weight isn't above 0.

    Examples:
        >>> from itertools import islice
        >>> from penstock.compat.energon import BlendDataset, MapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> keys = MapDataset(samples, lambda sample: sample.__key__, worker_config=config)
        >>> blend = BlendDataset((captions, 0.75), (keys, 0.25), worker_config=config)
        >>> list(islice(get_loader(blend), 5))
        ['000', 'picture 0', '001', '002', 'picture 1']
    """

    def __init__(self, *dataset_weights: tuple[SavableDataset[Any], float], worker_config: WorkerConfig) -> None:
        super().__init__([one for one, _ in dataset_weights], worker_config=worker_config)
        self.dataset_weights = dataset_weights
        self.weights = tuple(float(weight) for _, weight in dataset_weights)
        if min(self.weights) <= 0:
            raise ConfigError("weights must be positive", found=", ".join(map(str, self.weights)))

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: draws so far, whether each dataset continues, and their places."""
        draws, goes_on, places = self._start() if place is None else place
        walks = [Walk(one, lane, at) for one, at in zip(self.datasets, places, strict=True)]
        places, going = list(places), list(goes_on)
        while any(going):
            number = self._drawn(lane, draws, going)
            draws += 1
            try:
                sample = next(walks[number])
            except StopIteration:
                going[number], places[number] = 0, walks[number].end
                continue
            places[number] = walks[number].place
            yield sample, (draws, tuple(going), tuple(places))
        return draws, (1,) * len(self.datasets), tuple(places)

    def _start(self) -> Place:
        return 0, (1,) * len(self.datasets), (None,) * len(self.datasets)

    def _drawn(self, lane: Lane, draws: int, going: list[int]) -> int:
        """Which dataset comes next."""
        weights = [weight if goes else 0.0 for weight, goes in zip(self.weights, going, strict=True)]
        left = derive_key(lane.seed, "blend", lane.number, draws) / 2**64 * sum(weights)
        for number, weight in enumerate(weights):
            if left < weight:
                return number
            left -= weight
        return max(number for number, goes in enumerate(going) if goes)

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part: each dataset's place, split."""
        draws, going, places = self._start() if place is None else place
        return draws, going, split_all(self.datasets, places, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of all datasets, whatever their weights."""
        return sum(one.len_worker(worker_idx) for one in self.datasets)

    def settings(self) -> dict[str, Any]:
        """Return the weights."""
        return {"weights": list(self.weights)}

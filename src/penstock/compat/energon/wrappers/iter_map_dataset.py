"""`IterMapDataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.compat.energon.failures import Failures, lost
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Unsavable, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, given, name_of

_TOLERANCE = 100


def _same(length: int) -> int:
    return length


class IterMapDataset(BaseWrapperDataset[T_sample]):
    """Dataset that passes its samples through a function of iterators.

    Args:
        dataset: the samples.
        iter_map_fn: function from an iterator to an iterator.
        len_map_fn: function from the length of the input to that of the output.
        stateless_iter_fn: the function makes any number of samples from each input and keeps none. Only then can its
            place be saved.
        iter_map_fn_config: recorded in `config`.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import IterMapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> def pairs(samples):
        ...     for first in samples:
        ...         yield first.caption, next(samples).caption
        >>> halved = IterMapDataset(samples, pairs, len_map_fn=lambda length: length // 2, worker_config=config)
        >>> list(get_loader(halved))
        [('picture 0', 'picture 1'), ('picture 2', 'picture 3'), ('picture 4', 'picture 5')]
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]],
        *,
        len_map_fn: Callable[[int], int] = _same,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: Any = None,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn = iter_map_fn
        self.len_map_fn = len_map_fn
        self.stateless_iter_fn = stateless_iter_fn
        self.iter_map_fn_config = iter_map_fn_config
        self._failures = Failures(worker_config)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place: the inner place before the last input, and the outputs made since."""
        below, done = (None, 0) if place is None else place
        walk = Walk(self.dataset, lane, below)
        before, made, last, skipping = below, -1, None, done

        def taken() -> Iterator[Any]:
            nonlocal before, made, last, skipping
            while True:
                at = walk.place
                try:
                    last = next(walk)
                except StopIteration:
                    return
                skipping = skipping if made < 0 else 0  # of the first sample alone
                before, made = at, 0
                yield last

        while True:
            try:
                for one in self.iter_map_fn(taken()):
                    made += 1
                    if made <= skipping:
                        continue
                    self._failures.passed(name_of(self.iter_map_fn), last)
                    yield one, (before, made) if self.stateless_iter_fn else Unsavable(name_of(self.iter_map_fn))
                break
            except Exception as error:
                lost(self._failures, name_of(self.iter_map_fn), error, last, _TOLERANCE)
                skipping = 0
        return walk.end, 0

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; only the first continues inside a sample's results."""
        below, done = (None, 0) if place is None else place
        return self.dataset.split(below, part, parts), 0 if part else done

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of a worker, by `len_map_fn`."""
        return self.len_map_fn(self.dataset.len_worker(worker_idx))

    def can_restore_sample(self) -> bool:
        """Return whether the function is stateless and the inner datasets can restore samples."""
        return self.stateless_iter_fn and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Return the function."""
        return {"iter_map_fn": name_of(self.iter_map_fn), **given("iter_map_fn_config", self.iter_map_fn_config)}

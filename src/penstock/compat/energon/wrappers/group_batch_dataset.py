"""`GroupBatchDataset`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk, again
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, Calls, given, name_of
from penstock.errors import ConfigError

_START = (0, 0, (), None)


@dataclass(slots=True)
class _Bucket:
    """Samples of one group that wait for more, each with its number and the place below before it."""

    size: int
    samples: list[Any] = field(default_factory=list[Any])
    places: list[tuple[int, Place]] = field(default_factory=list[tuple[int, Place]])


class GroupBatchDataset(BaseWrapperDataset[T_sample]):
    """Dataset of batches of samples of the same group; batches are filled over the whole run.

    Args:
        dataset: the samples.
        fixed_batch_size: size of all batches; None if `sample_group_key` returns it.
        sample_group_key: function from a sample to (group, batch size or None). May raise `SkipSample`.
        batcher: function from samples to a batch.
        batcher_stateless: the result depends only on the samples.
        batcher_config: recorded in `config`.
        drop_last: drop batches that aren't full at the end of a pass.
        failure_tolerance: number of consecutive batches that may fail; 0 for any number.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import GroupBatchDataset, MapDataset, WorkerConfig
        >>> from penstock.compat.energon import batch_list, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> def group(caption):
        ...     return int(caption[-1]) % 2, None
        >>> batches = GroupBatchDataset(captions, 3, group, batch_list, worker_config=config)
        >>> list(get_loader(batches))
        [['picture 0', 'picture 2', 'picture 4'], ['picture 1', 'picture 3', 'picture 5']]
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Any = None,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.fixed_batch_size = fixed_batch_size
        self.sample_group_key = sample_group_key
        self.batcher = batcher
        self.batcher_stateless = batcher_stateless
        self.batcher_config = batcher_config
        self.drop_last = drop_last
        self._key = Calls(sample_group_key, worker_config, failure_tolerance)
        self._batch = Calls(batcher, worker_config, failure_tolerance)

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield batches from a place: batches and samples so far, waiting samples, and the inner place."""
        calls, seen, waiting, below = _START if place is None else place
        buckets: dict[Hashable, _Bucket] = {}
        for number, at in waiting:
            self._put(buckets, again(self.dataset, lane, at), at, lane, number)
        walk = Walk(self.dataset, lane, below)
        while True:
            at = walk.place
            try:
                sample = next(walk)
            except StopIteration:
                break
            key = self._put(buckets, sample, at, lane, seen)
            seen += 1
            if key is not None and len(buckets[key[0]].samples) >= buckets[key[0]].size:
                bucket = buckets.pop(key[0])
                for one in self._batch(bucket.samples, lane, calls):
                    yield one, (calls + 1, seen, _waiting(buckets), walk.place)
                calls += 1
        for key in [] if self.drop_last else list(buckets):
            bucket = buckets.pop(key)
            for one in self._batch(bucket.samples, lane, calls):
                yield one, (calls + 1, seen, _waiting(buckets), walk.place)
            calls += 1
        return calls, seen, (), walk.end

    def _put(self, buckets: dict[Hashable, _Bucket], sample: Any, at: Place, lane: Lane, number: int) -> Any:
        """Put a sample into its bucket; the key in a tuple, or None where it is skipped."""
        for key, size in self._key(sample, lane, number):
            if (size is None) == (self.fixed_batch_size is None):
                found = f"{size!r}, with fixed_batch_size={self.fixed_batch_size!r}"
                raise ConfigError(f"group {key!r} has no fixed batch size", found=found, expected="one of the two")
            chosen = int(self.fixed_batch_size or 0) if size is None else int(size)
            bucket = buckets.setdefault(key, _Bucket(chosen))
            if bucket.size != chosen:
                raise ConfigError(f"group {key!r} has two batch sizes", found=chosen, expected=bucket.size)
            bucket.samples.append(sample)
            bucket.places.append((number, at))
            return (key,)
        return None

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part; waiting samples stay with the first."""
        calls, seen, waiting, below = _START if place is None else place
        return calls, seen, () if part else waiting, self.dataset.split(below, part, parts)

    def can_restore_sample(self) -> bool:
        """Return whether the function is stateless and the inner datasets can restore samples."""
        return self.batcher_stateless and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Return size and functions."""
        named = {"fixed_batch_size": self.fixed_batch_size, "sample_group_key": name_of(self.sample_group_key)}
        more = {"batcher": name_of(self.batcher), "drop_last": self.drop_last}
        return {**named, **more, **given("batcher_config", self.batcher_config)}


def _waiting(buckets: dict[Hashable, _Bucket]) -> tuple[tuple[int, Place], ...]:
    return tuple(place for bucket in buckets.values() for place in bucket.places)

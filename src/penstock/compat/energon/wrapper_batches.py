"""Energon's wrappers of datasets that take several samples together: batches, groups, packs and shuffle buffers."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock._digest import derive_key
from penstock.compat.energon.batching import is_tensor
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk, again
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrapper_base import (
    BaseWrapperDataset,
    CallingDataset,
    Calls,
    Taking,
    WindowedDataset,
    results,
)
from penstock.compat.energon.wrapper_samples import BlendDataset
from penstock.errors import ConfigError


class _Batching(BaseWrapperDataset[T_sample]):
    """Dataset of batches that a function makes of samples."""

    _stateless = ("batcher_stateless",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batcher: Callable[[list[Any]], Any],
        batcher_stateless: bool,
        batcher_config: Any,
        drop_last: bool,
        failure_tolerance: int,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.batcher = batcher
        self.batcher_stateless = batcher_stateless
        self.batcher_config = batcher_config
        self.drop_last = drop_last
        self._batch = Calls(batcher, worker_config, failure_tolerance)


class BatchDataset(_Batching[T_sample], CallingDataset[T_sample]):
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

    _recorded = ("batch_size", "batcher", "drop_last", "batcher_config")

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
        batching = (batcher, batcher_stateless, batcher_config, drop_last, failure_tolerance, worker_config)
        super().__init__(dataset, *batching)
        if batch_size < 1:
            raise ConfigError("a batch needs at least one sample", found=batch_size)
        self.batch_size = batch_size

    def _steps(self, lane: Lane, place: Place) -> Steps:
        calls, below, done = place
        taking = Taking(self.dataset, lane, below)
        least = self.batch_size if self.drop_last else 1
        while len(samples := taking.take(self.batch_size)) >= least:
            yield from results(self._batch, samples, lane, (calls, below, done), taking.place)
            calls, below, done = calls + 1, taking.place, 0
        return calls, taking.end, 0

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of batches of a worker."""
        samples = self.dataset.len_worker(worker_idx)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


@dataclass(slots=True)
class _Bucket:
    size: int
    samples: list[Any] = field(default_factory=list[Any])
    places: list[Place] = field(default_factory=list[Place])


class Buckets:
    """Samples by group, until their group is full."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, _Bucket] = {}

    def put(self, key: Hashable, size: int, sample: Any, place: Place = None) -> list[Any] | None:
        """Add a sample to its group; return the group's samples if it is full.

        Raises:
            ConfigError: the group was started with another size.
        """
        bucket = self._buckets.setdefault(key, _Bucket(size))
        if bucket.size != size:
            raise ConfigError(f"group {key!r} has two batch sizes", found=size, expected=bucket.size)
        bucket.samples.append(sample)
        bucket.places.append(place)
        return self._buckets.pop(key).samples if len(bucket.samples) >= size else None

    def drain(self) -> Iterator[list[Any]]:
        """Yield and remove the samples of each group that isn't full."""
        while self._buckets:
            yield self._buckets.pop(next(iter(self._buckets))).samples

    @property
    def places(self) -> tuple[Place, ...]:
        """Places of all samples, by group."""
        return tuple(place for bucket in self._buckets.values() for place in bucket.places)


class GroupBatchDataset(_Batching[T_sample]):
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

    _begin = (0, 0, (), None)
    _recorded = ("fixed_batch_size", "sample_group_key", "batcher", "drop_last", "batcher_config")

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
        batching = (batcher, batcher_stateless, batcher_config, drop_last, failure_tolerance, worker_config)
        super().__init__(dataset, *batching)
        self.fixed_batch_size = fixed_batch_size
        self.sample_group_key = sample_group_key
        self._key = Calls(sample_group_key, worker_config, failure_tolerance)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        calls, seen, waiting, below = place
        buckets = Buckets()
        for number, at in waiting:
            self._put(buckets, again(self.dataset, lane, at), at, lane, number)
        walk = Walk(self.dataset, lane, below)
        at = walk.place
        for sample in walk:
            group = self._put(buckets, sample, at, lane, seen)
            seen, at = seen + 1, walk.place
            if group is not None:
                for one in self._batch(group, lane, calls):
                    yield one, (calls + 1, seen, buckets.places, walk.place)
                calls += 1
        for group in () if self.drop_last else buckets.drain():
            for one in self._batch(group, lane, calls):
                yield one, (calls + 1, seen, buckets.places, walk.place)
            calls += 1
        return calls, seen, (), walk.end

    def _put(self, buckets: Buckets, sample: Any, at: Place, lane: Lane, number: int) -> list[Any] | None:
        """Put a sample into its group unless it is skipped; return the group's samples if it is full."""
        for key, size in self._key(sample, lane, number):
            if (size is None) == (self.fixed_batch_size is None):
                found = f"{size!r} from sample_group_key, fixed_batch_size={self.fixed_batch_size!r}"
                hint = "Set the batch size in exactly one of the two places"
                raise ConfigError(f"group {key!r} has no batch size, or two", found=found, hint=hint)
            return buckets.put(key, int(size or self.fixed_batch_size or 0), sample, (number, at))
        return None

    def _split(self, place: Place, part: int, parts: int) -> Place:
        calls, seen, waiting, below = place
        return calls, seen, () if part else waiting, self.dataset.split(below, part, parts)


class Packer:
    """Functions that select packs from a buffer of samples, and make outputs of each pack.

    Args:
        buffer_size: number of samples of a full buffer.
        select: function from a buffer's samples to packs; see `select_all`.
        pack: function from the samples of a pack to one output, or a generator.
        encode: function from one sample of a selected pack to one.
    """

    def __init__(self, buffer_size: int, select: Calls, pack: Calls, encode: Calls | None) -> None:
        self._buffer_size = buffer_size
        self._select = select
        self._pack = pack
        self._encode = encode

    def packs(self, samples: list[Any], lane: Lane, number: int) -> list[list[Any]]:
        """Return the packs of buffer `number` of a lane that aren't empty."""
        return [pack for packs in self._select(samples, lane, number) for pack in packs if pack]

    def outputs(
        self, packs: list[list[Any]], lane: Lane, number: int, packs_before: int, refill: Callable[[int], None]
    ) -> Iterator[Any]:
        """Yield the outputs of a buffer's packs.

        Args:
            packs: the packs.
            lane: lane of the buffer.
            number: number of the buffer in its lane.
            packs_before: number of earlier packs of the lane.
            refill: called after each pack with the number of samples for which the next buffer has room. The original
                reads them at that time, which determines the batch for which they are encoded.
        """
        packed, selected = 0, sum(map(len, packs))
        for index, pack in enumerate(packs, packs_before):
            ready = pack
            if self._encode is not None:
                calls = enumerate(pack, number * self._buffer_size + packed)
                ready = [made for call, one in calls for made in self._encode(one, lane, call)]
            if ready:
                yield from self._pack.each(ready, lane, index)
            packed += len(pack)
            refill(self._buffer_size - selected + packed)
        if not packs:
            refill(self._buffer_size)


def select_all(select: Callable[[list[Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    """Return a function with the packs that `select` returns or yields as a list."""

    @functools.wraps(select)
    def packs(samples: list[Any]) -> list[Any]:
        return list(select(samples) or ())

    return packs


class PackingDataset(WindowedDataset[T_sample]):
    """Dataset of packs of samples selected from a buffer. The last buffer of a lane may be smaller.

    Args:
        dataset: the samples.
        buffer_size: number of samples passed to `pre_packer`.
        pre_packer: function from a buffer's samples to packs; samples in no pack are dropped. May raise `SkipSample`.
        final_packer: function from the samples of a pack to one sample, or a generator.
        final_packer_stateless: the result depends only on the samples.
        sample_encoder: function from one sample of a selected pack to one.
        sample_encoder_stateless: the result depends only on the sample.
        packer_config: recorded in `config`.
        pre_packer_failure_tolerance: number of consecutive buffers that may fail; 0 for any number.
        final_packer_failure_tolerance: number of consecutive packs that may fail.
        sample_encoder_failure_tolerance: number of consecutive samples that may fail.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import MapDataset, PackingDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> def pairs(captions):
        ...     return [captions[start : start + 2] for start in range(0, len(captions), 2)]
        >>> packs = PackingDataset(captions, 4, pairs, ", ".join, worker_config=config)
        >>> list(get_loader(packs))
        ['picture 0, picture 1', 'picture 2, picture 3', 'picture 4, picture 5']
    """

    _begin = (*WindowedDataset._begin, 0)
    _recorded = ("buffer_size", "pre_packer", "final_packer", "sample_encoder", "packer_config")
    _stateless = ("final_packer_stateless", "sample_encoder_stateless")

    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,
        packer_config: Any = None,
        pre_packer_failure_tolerance: int = 100,
        final_packer_failure_tolerance: int = 100,
        sample_encoder_failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if buffer_size < 1:
            raise ConfigError("a packing buffer needs at least one sample", found=buffer_size)
        self.buffer_size = buffer_size
        self.pre_packer = pre_packer
        self.final_packer = final_packer
        self.final_packer_stateless = final_packer_stateless
        self.sample_encoder = sample_encoder
        self.sample_encoder_stateless = sample_encoder is None or sample_encoder_stateless
        self.packer_config = packer_config
        self._packer = Packer(
            buffer_size,
            Calls(select_all(pre_packer), worker_config, pre_packer_failure_tolerance),
            Calls(final_packer, worker_config, final_packer_failure_tolerance),
            sample_encoder and Calls(sample_encoder, worker_config, sample_encoder_failure_tolerance),
        )

    def _steps(self, lane: Lane, place: Place) -> Steps:
        number, below, done, after, packs_before = place
        taking = Taking(self.dataset, lane, below)
        while True:
            samples = taking.take(self.buffer_size)
            if not samples:
                return number, taking.end, 0, None, packs_before
            if after is None:
                after = taking.place
            else:
                taking = Taking(self.dataset, lane, after)
            packs = self._packer.packs(samples, lane, number)
            outputs = self._packer.outputs(packs, lane, number, packs_before, taking.read_up_to)
            for count, one in enumerate(outputs, 1):
                if count > done:
                    yield one, (number, below, count, after, packs_before)
            number, below, done, after, packs_before = number + 1, after, 0, None, packs_before + len(packs)


class ShuffleBufferDataset(WindowedDataset[T_sample]):
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

    _recorded = ("size",)

    def __init__(self, dataset: SavableDataset[Any], size: int, *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if size < 1:
            raise ConfigError("a shuffle buffer needs at least one sample", found=size)
        self.size = size

    def _steps(self, lane: Lane, place: Place) -> Steps:
        number, below, done, after = place
        while True:
            taking = Taking(self.dataset, lane, below)
            samples = taking.take(self.size)
            random.Random(derive_key(lane.seed, "shuffle", lane.number, number)).shuffle(samples)
            after = taking.place if after is None else after
            for count, sample in enumerate(samples[done:], done + 1):
                whole = count == len(samples)
                yield sample, (number + 1, after, 0, None) if whole else (number, below, count, after)
            number, below, done, after = number + 1, after, 0, None
            if not samples:
                return number, taking.end, 0, None


def concat_pad(batch: list[Any]) -> Any:
    """Concatenate tensors [k, …] to one tensor [sum of k, …], padded with zeros at the ends.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import concat_pad
        >>> concat_pad([torch.tensor([[1, 2]]), torch.tensor([[3], [4]])])
        tensor([[1, 2],
                [3, 0],
                [4, 0]])
    """
    sizes = [max(one.shape[axis] for one in batch) for axis in range(1, batch[0].ndim)]
    made = batch[0].new_zeros((sum(one.shape[0] for one in batch), *sizes))
    start = 0
    for one in batch:
        made[(slice(start, start + one.shape[0]), *(slice(0, size) for size in one.shape[1:]))] = one
        start += one.shape[0]
    return made


def generic_concat(batch: list[Any]) -> Any:
    """Concatenate batches: tensors with `concat_pad`, dicts and dataclasses by field, others as a list.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import generic_concat
        >>> generic_concat([{"ids": torch.tensor([[1, 2]])}, {"ids": torch.tensor([[3]])}])
        {'ids': tensor([[1, 2],
                [3, 0]])}
    """
    first = batch[0]
    if is_tensor(first):
        return concat_pad(batch)
    if isinstance(first, dict):
        return {key: generic_concat([one[key] for one in batch]) for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in dataclasses.fields(first)]
        return type(first)(**{name: generic_concat([getattr(one, name) for one in batch]) for name in names})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(generic_concat(list(column)) for column in zip(*batch, strict=True)))
    return batch


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Concatenate batches of one type with `generic_concat`.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import homogeneous_concat_mix
        >>> homogeneous_concat_mix([torch.tensor([[1, 2]]), torch.tensor([[3]])])
        tensor([[1, 2],
                [3, 0]])
        >>> homogeneous_concat_mix([torch.tensor([[1, 2]]), "text"])
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: batches with different types can't be combined: found Tensor, str
    """
    kinds = sorted({type(one).__name__ for one in samples})
    if len({type(one) for one in samples}) != 1:
        raise ConfigError("batches with different types can't be combined", found=", ".join(kinds))
    return generic_concat(samples)


def _as_list(samples: list[Any]) -> Any:
    return samples


class MixBatchDataset(BaseWrapperDataset[T_sample]):
    """Dataset of batches with samples of several datasets, drawn by weight.

    Args:
        dataset_weights: (dataset, weight) pairs; usually datasets of batches of one sample.
        batch_size: samples per batch.
        batch_mix_fn: function from the drawn samples to one batch; by default the list.
        worker_config: config of the datasets.

    Examples:
        >>> from penstock.compat.energon import MapDataset, MixBatchDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> keys = MapDataset(samples, lambda sample: sample.__key__, worker_config=config)
        >>> mixed = MixBatchDataset((captions, 0.5), (keys, 0.5), batch_size=3, worker_config=config)
        >>> next(iter(get_loader(mixed)))
        ['000', 'picture 0', '001']
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset[Any], float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = _as_list,
        worker_config: WorkerConfig,
    ) -> None:
        blend: BlendDataset[Any] = BlendDataset(*dataset_weights, worker_config=worker_config)
        batches: BatchDataset[Any] = BatchDataset(blend, batch_size, batch_mix_fn, worker_config=worker_config)
        super().__init__(batches, worker_config=worker_config)

    def _steps(self, lane: Lane, place: Place) -> Steps:
        return self.dataset.walk(lane, place)

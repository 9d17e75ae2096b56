"""`MixBatchDataset`, and ways to make one batch of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from penstock.compat.energon.batching import is_tensor
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset
from penstock.compat.energon.wrappers.batch_dataset import BatchDataset
from penstock.compat.energon.wrappers.blend_dataset import BlendDataset
from penstock.errors import ConfigError


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

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield samples from a place, which is that of the inner dataset."""
        return self.dataset.walk(lane, place)

    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one part of the inner dataset."""
        return self.dataset.split(place, part, parts)

"""Batching of samples: tensors are padded with zeros and stacked, other values become lists."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import in_memory
from penstock._optional import require


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch, without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "new_zeros")


def generic_batch(batch: list[Any]) -> Any:
    """Batch values by the type of the first one.

    Tensors are padded and stacked; dicts, dataclasses and named tuples are batched by field.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import generic_batch
        >>> generic_batch([{"ids": torch.tensor([1, 2]), "lang": "en"}, {"ids": torch.tensor([3]), "lang": "de"}])
        {'ids': tensor([[1, 2],
                [3, 0]]), 'lang': ['en', 'de']}
    """
    first = batch[0] if batch else None
    if isinstance(first, str):
        return batch
    if is_tensor(first):
        return batch_pad_stack(batch)
    if isinstance(first, dict):
        return {key: generic_batch([one[key] for one in batch]) for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        if hasattr(first, "from_samples"):
            return first.from_samples(batch)  # pyright: ignore[reportAttributeAccessIssue]
        names = [one.name for one in dataclasses.fields(first)]
        return type(first)(**{name: generic_batch([getattr(one, name) for one in batch]) for name in names})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(generic_batch(list(column)) for column in zip(*batch, strict=True)))
    return batch


def batch_stack(batch: list[Any]) -> Any:
    """Stack tensors of one shape to one tensor [k, …]. Raises `ConfigError` if there isn't enough memory.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import batch_stack
        >>> batch_stack([torch.tensor([1, 2]), torch.tensor([3, 4])])
        tensor([[1, 2],
                [3, 4]])
    """
    with _room_for(batch):
        return require("torch", extra="torch").stack(batch, dim=0)


def _room_for(batch: list[Any]) -> AbstractContextManager[None]:
    return in_memory("a batch", f"{len(batch)} tensors, the first {list(batch[0].shape)} of {batch[0].dtype}")


def batch_pad_stack(batch: list[Any]) -> Any:
    """Stack tensors with the same number of dimensions to one tensor [k, …].

    Each tensor is padded with zeros at its ends. Tensors of one shape are copied once. numpy copies, in the calling
    thread: torch would start its own threads for each batch, which take cores from the loader's other workers.

    Raises:
        ConfigError: there isn't enough memory.

    Examples:
        >>> import torch
        >>> from penstock.compat.energon import batch_pad_stack
        >>> batch_pad_stack([torch.tensor([1, 2, 3]), torch.tensor([4])])
        tensor([[1, 2, 3],
                [4, 0, 0]])
    """
    with _room_for(batch):
        return _padded(batch)


def _padded(batch: list[Any]) -> Any:
    arrays = _as_arrays(batch)
    if arrays is not None:
        return require("torch", extra="torch").from_numpy(_pad_stack(arrays))
    sizes = [max(one.shape[axis] for one in batch) for axis in range(batch[0].ndim)]
    made = batch[0].new_zeros((len(batch), *sizes))
    for row, one in enumerate(batch):
        made[(row, *(slice(0, size) for size in one.shape))] = one
    return made


def _as_arrays(batch: list[Any]) -> list[NDArray[Any]] | None:
    """Return arrays that share the tensors' memory, or None unless all are dense and have the same numpy dtype."""
    plain: Any = require("torch", extra="torch").Tensor
    first = batch[0]
    for one in batch:
        same = type(one) is plain and one.dtype == first.dtype and one.ndim == first.ndim
        if not same or one.device.type != "cpu" or one.requires_grad or one.is_conj() or one.is_neg():
            return None
    try:
        return [one.numpy() for one in batch]
    except (TypeError, RuntimeError):  # bfloat16, sparse
        return None


def _pad_stack(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    shape = arrays[0].shape
    if all(one.shape == shape for one in arrays):
        made = np.empty((len(arrays), *shape), arrays[0].dtype)
        for row, one in enumerate(arrays):
            made[row] = one
        return made
    sizes = np.max([one.shape for one in arrays], axis=0).tolist()
    made = np.zeros((len(arrays), *sizes), arrays[0].dtype)
    for row, one in enumerate(arrays):
        made[(row, *(slice(0, size) for size in one.shape))] = one
    return made


def batch_list(batch: list[Any]) -> Any:
    """Return the batch unchanged: a list.

    Examples:
        >>> from penstock.compat.energon import batch_list
        >>> batch_list(["Open", "the gate"])
        ['Open', 'the gate']
    """
    return batch

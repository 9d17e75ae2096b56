"""Batches to a device: one copy each, from pinned memory, on a stream of its own, by the threads that read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._optional import require
from penstock.errors import ConfigError
from penstock.load.collate import ToSignedIds, may_hold_arrays

torch: Any = require("torch", extra="torch")

_ALIGNMENT_BYTES = 64


class Moving(dict[str, Any]):
    """A batch on its way: the columns that were read, and what becomes of them.

    Attributes:
        moved: the columns with tensors on the device.
        block: uint8[n] on the device, which those are made of.
        event: recorded behind the copy; None where there is nothing to wait for.
    """

    moved: dict[str, Any]
    block: Any
    event: Any


class ToDevice:
    """Columns → `Moving`: arrays, also in lists, are laid into one block, which is copied once.

    Ids travel in the width that they are stored in and become signed on the device; arrays that are views of one block
    travel once.

    Args:
        ids: makes token ids signed.
        device: where batches go, such as `"cuda"`.
    """

    def __init__(self, ids: ToSignedIds, device: Any) -> None:
        self._ids = ids
        self._device = checked_device(device)
        self._is_cuda: bool = self._device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(self._device) if self._is_cuda else None

    def __reduce__(self) -> tuple[object, ...]:
        return (ToDevice, (self._ids, self._device))

    def __call__(self, columns: Any) -> Any:
        """`columns` on their way; anything but a dict stays as it is."""
        if not isinstance(columns, dict):
            return columns
        read = {name: self._on_host(name, value) for name, value in columns.items()}
        layout = _Layout(read.values())
        moving = Moving(read)
        host = torch.empty(layout.size_bytes, dtype=torch.uint8, pin_memory=self._is_cuda)
        layout.fill(host.numpy())
        with torch.cuda.stream(self._stream) if self._is_cuda else contextlib.nullcontext():
            # Pinned memory is given out again only once this copy is done: torch sees to that.
            moving.block = self._copied(host)
            moving.moved = {name: self._tensor(name, value, moving.block, layout) for name, value in read.items()}
        moving.event = self._stream.record_event() if self._is_cuda else None
        return moving

    def _copied(self, host: Any) -> Any:
        return host.to(self._device, non_blocking=True)

    def _on_host(self, name: str, value: Any) -> Any:
        # int32 can't hold each uint32: that is looked at where the ids are.
        wide = isinstance(value, np.ndarray) and value.dtype.kind == "u" and value.dtype.itemsize >= 4
        return self._ids.convert(name, value) if wide and self._ids.dtype == "int32" else value

    def _tensor(self, name: str, value: Any, block: Any, layout: _Layout) -> Any:
        if isinstance(value, list):
            return [self._tensor(name, one, block, layout) for one in value] if may_hold_arrays(value) else value
        if not _is_moved(value):
            return value
        part = layout.parts[id(value)]
        base = block[part.start : part.start + part.base.nbytes].view(getattr(torch, value.dtype.name))
        strides = [stride // value.itemsize for stride in part.strides]
        tensor = base.as_strided(value.shape, strides, base.storage_offset() + part.offset // value.itemsize)
        is_id = value.dtype.kind == "u" and (value.dtype.itemsize > 1 or name in self._ids.token_fields)
        return tensor.to(getattr(torch, self._ids.dtype)) if is_id else tensor


def arrived(batch: Any) -> Any:
    """The tensors of a `Moving`, for the stream that computes: it waits for the copy, the processor does not."""
    if not isinstance(batch, Moving):
        return batch
    if batch.event is not None:
        stream = torch.cuda.current_stream(batch.block.device)
        stream.wait_event(batch.event)
        for tensor in _tensors([batch.block, *batch.moved.values()]):
            tensor.record_stream(stream)
    return batch.moved


def checked_device(device: Any) -> Any:
    """A torch.device; raises `ConfigError` where torch knows none of this name, or finds no such hardware."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            "torch doesn't know this device", found=repr(device), hint="Such as 'cuda' or 'cpu'"
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "torch finds no CUDA device", found=f"device={device!r}", hint="device='cpu' works the same way"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """Where an array lies: `base` at `start` of the block, the array `offset` bytes into it."""

    base: NDArray[Any]
    start: int
    offset: int
    strides: tuple[int, ...]


class _Layout:
    """Places of all arrays among columns in one block; `parts` are by the arrays' ids."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.parts: dict[int, _Part] = {}
        self.size_bytes = 0
        self._starts: dict[int, int] = {}
        for value in values:
            self._add(value)

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Copy each base once."""
        done: set[int] = set()
        for part in self.parts.values():
            if part.start not in done and part.base.nbytes:
                done.add(part.start)
                block[part.start : part.start + part.base.nbytes] = part.base.reshape(-1).view(np.uint8)

    def _add(self, value: Any) -> None:
        if isinstance(value, list):
            for one in value if may_hold_arrays(value) else ():
                self._add(one)
        elif _is_moved(value):
            base, offset = _base_of(value)
            strides = value.strides if base is value.base else base.strides
            if id(base) not in self._starts:
                self._starts[id(base)] = self.size_bytes
                self.size_bytes += -(-base.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self.parts[id(value)] = _Part(base, self._starts[id(base)], offset, strides)


def _base_of(value: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """What is copied for an array, and where it lies in that: its base where most of it is the array's, else itself."""
    base = value.base
    if (
        isinstance(base, np.ndarray)
        and base.dtype == value.dtype
        and base.flags.c_contiguous
        and base.nbytes <= 2 * value.nbytes
        and all(stride > 0 and stride % value.itemsize == 0 for stride in value.strides)
    ):
        return base, value.ctypes.data - base.ctypes.data
    return np.ascontiguousarray(value).reshape(value.shape), 0


def _is_moved(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and hasattr(torch, value.dtype.name)


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value

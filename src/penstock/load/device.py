"""Transfer of batches to a device: one copy each, from pinned memory, on its own stream, by the reading threads."""

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
    """Batch in transfer: the host columns, with their copies on the device.

    Attributes:
        moved: the columns with tensors on the device.
        block: uint8[n] on the device, which the tensors share.
        event: recorded after the copy; None if there is nothing to wait for.
    """

    moved: dict[str, Any]
    block: Any
    event: Any


class ToDevice:
    """Function from columns to `Moving`: all arrays, also in lists, are copied as one block.

    Ids are copied in their stored width and become signed on the device. Arrays that are views of one block are copied
    once.
    """

    def __init__(self, ids: ToSignedIds, device: Any) -> None:
        self._ids = ids
        self._device = checked_device(device)
        self._is_cuda: bool = self._device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(self._device) if self._is_cuda else None

    def __reduce__(self) -> tuple[object, ...]:
        return (ToDevice, (self._ids, self._device))

    def __call__(self, columns: Any) -> Any:
        """Start the copy of `columns`. Anything but a dict is returned unchanged."""
        if not isinstance(columns, dict):
            return columns
        read = {name: self._on_host(name, value) for name, value in columns.items()}
        layout = _Layout(read.values())
        moving = Moving(read)
        host = torch.empty(layout.size_bytes, dtype=torch.uint8, pin_memory=self._is_cuda)
        layout.fill(host.numpy())
        with torch.cuda.stream(self._stream) if self._is_cuda else contextlib.nullcontext():
            # Pinned memory is reused only after this copy is done: torch ensures that.
            moving.block = self._copied(host)
            moving.moved = {name: self._tensor(name, value, moving.block, layout) for name, value in read.items()}
        moving.event = self._stream.record_event() if self._is_cuda else None
        return moving

    def _copied(self, host: Any) -> Any:
        return host.to(self._device, non_blocking=True)

    def _on_host(self, name: str, value: Any) -> Any:
        # int32 can't hold every uint32: checked on the host.
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
    """Return the tensors of a `Moving` for the computing stream, which waits for the copy; the CPU doesn't."""
    if not isinstance(batch, Moving):
        return batch
    if batch.event is not None:
        stream = torch.cuda.current_stream(batch.block.device)
        stream.wait_event(batch.event)
        for tensor in _tensors([batch.block, *batch.moved.values()]):
            tensor.record_stream(stream)
    return batch.moved


def checked_device(device: Any) -> Any:
    """Return a torch.device; raise `ConfigError` if torch or the hardware doesn't support it."""
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
    """Location of an array: `base` is at `start` of the block, the array `offset` bytes into it."""

    base: NDArray[Any]
    start: int
    offset: int
    strides: tuple[int, ...]


class _Layout:
    """Locations of all arrays among columns in one block; the keys of `parts` are the arrays' ids."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.parts: dict[int, _Part] = {}
        self.size_bytes = 0
        self._starts: dict[int, int] = {}
        for value in values:
            self._add(value)

    def fill(self, block: NDArray[np.uint8]) -> None:
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
    """Return the array to copy for `value`, and the offset of `value` in it: its base if it is mostly `value`."""
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

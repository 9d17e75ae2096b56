"""Buffers, columns of samples, and checks of indices and positions from callers."""

from __future__ import annotations

import contextlib
import math
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import Batch, Buffer, IntArray, Sample


def byte_view(data: Buffer) -> memoryview:
    """Return the bytes of a buffer or an array, without a copy if it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


_LEAST_BYTES = 1 << 16  # below, the allocator does it as well
_MOST_KEPT = 16


class New(Protocol):
    """Allocator of arrays with undefined content, like `numpy.empty`."""

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]: ...


class Recycled:
    """Allocator of arrays with undefined content, in memory of earlier ones if possible; a `New`.

    An array's memory is reused when the last array or tensor over it is gone, so referenced arrays are never
    overwritten.
    Thread-safe. A copy in another process starts empty.

    Memory: memory in use, and the last 16 free blocks.

    Args:
        block: allocates uint8[n]; by default on the heap.
    """

    def __init__(self, block: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self._block = block
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_KEPT)

    def __reduce__(self) -> tuple[object, ...]:
        return (Recycled, (self._block,))

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> NDArray[Any]:
        """Return an array of this shape and type, in C order."""
        kind = np.dtype(dtype)
        size_bytes = math.prod(shape) * kind.itemsize
        if size_bytes < _LEAST_BYTES and self._block is None:
            return np.empty(shape, kind)
        lease = _Lease(self._taken(size_bytes), self._free)
        return np.asarray(lease)[:size_bytes].view(kind).reshape(shape)

    def _taken(self, size_bytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took it
                break
            if block.nbytes == size_bytes:
                return block
            self._free.append(block)
        return np.empty(size_bytes, np.uint8) if self._block is None else self._block(size_bytes)


class _Lease:
    """Lease of a block while an array over it is alive: numpy keeps it as their base."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)


# Up to this many integers Python is faster than a numpy call.
_FEW = 64


def as_index(index: int, length: int) -> int:
    """Convert `index` to a number in `[0, length)`; negative ones count from the end.

    Args:
        index: index of a sample.
        length: number of samples.

    Raises:
        IndexError: `index` is outside `[-length, length)`.

    Examples:
        >>> from penstock.formats.kit import as_index
        >>> as_index(-1, 10)
        9
    """
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"index {place} is out of range for {length} samples")
    return place + length if place < 0 else place


def as_indices(indices: Sequence[int] | IntArray, length: int) -> IntArray:
    """Convert the indices of a batch to int64[k], each in `[0, length)`.

    Args:
        indices: integers.
        length: number of samples.

    Raises:
        IndexError: an index is negative, or `length` or more.

    Examples:
        >>> from penstock.formats.kit import as_indices
        >>> as_indices([3, 1], 10)
        array([3, 1])
    """
    array = _as_int64(indices)
    if array.size:
        low, high = _ends(array)
        if low < 0 or high >= length:
            raise IndexError(f"index {low if low < 0 else high} is out of range for {length} samples")
    return array


def as_position(position: int) -> int:
    """Return a position of an endless stream.

    Raises:
        IndexError: the position is negative.
    """
    place = operator.index(position)
    if place < 0:
        raise IndexError(f"position {place} is negative")
    return place


def as_positions(positions: Sequence[int] | IntArray) -> IntArray:
    """Return int64[k]: positions of an endless stream.

    Raises:
        IndexError: a position is negative.
    """
    array = _as_int64(positions)
    if array.size and (low := _ends(array)[0]) < 0:
        raise IndexError(f"position {low} is negative")
    return array


def _ends(array: IntArray) -> tuple[int, int]:
    if array.size > _FEW:
        return int(array.min()), int(array.max())
    few: list[int] = array.tolist()
    return min(few), max(few)


def _as_int64(values: Sequence[int] | NDArray[Any]) -> IntArray:
    array = np.asarray(values)
    if array.dtype == np.int64 and array.ndim == 1:
        return array
    if array.ndim != 1:
        raise TypeError(f"expected a one-dimensional array of integers, found shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "uO":
        beyond = [value for value in array.tolist() if isinstance(value, int) and not -1 << 63 <= value < 1 << 63]
        if beyond:
            raise IndexError(f"{beyond[0]} doesn't fit in 64 bits")
    if array.dtype.kind not in "iu":
        raise TypeError(f"expected integers, found {array.dtype}")
    return array.astype(np.int64)


Rows: TypeAlias = "slice | NDArray[np.intp]"


class NoRoom(ConfigError):
    """Request that doesn't fit into memory: not an error of the samples, so they aren't substituted."""


@contextlib.contextmanager
def in_memory(what: str, described: Any) -> Generator[None]:
    """Convert memory errors inside the block to `NoRoom`.

    Args:
        what: beginning of the message: the request.
        described: `str()` of it describes the samples or the size.
    """
    try:
        yield
    except NoRoom as error:
        raise NoRoom(error.what, found=f"{described}: {error.found}", hint=error.hint) from None
    except MemoryError as error:
        raise no_room(what, f"{described}: {error}" if str(error) else str(described)) from None
    except RuntimeError as error:  # torch's own
        if "can't allocate memory" not in str(error):
            raise
        raise no_room(what, f"{described}: {error}") from None


def no_room(what: str, found: str) -> NoRoom:
    return NoRoom(f"{what} doesn't fit in memory", found=found, hint="Request fewer or smaller samples at once")


def stack(samples: Sequence[Sample]) -> Batch:
    """Stack samples into columns.

    A column is an array `[k, ...]` if its values are numbers of one kind, or arrays of one dtype and shape; otherwise a
    list. Python integers become int64 if they fit, floats float64, bools bool. A field that some samples lack becomes a
    list with None in its place.

    Args:
        samples: k samples.

    Returns:
        A batch of k rows.

    Raises:
        NoRoom: an array doesn't fit into memory.

    Examples:
        >>> from penstock.formats.kit import stack
        >>> stack([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        {'id': array([1, 2]), 'name': ['a', 'b']}
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    try:
        return {name: column([sample.get(name) for sample in samples]) for name in names}
    except NoRoom as error:
        keys = [sample["__key__"] for sample in samples if "__key__" in sample]
        if keys:
            error.found = f"{error.found}, in samples {keys[0]!r} to {keys[-1]!r}"
        raise


def column(values: Sequence[Any]) -> Any:
    """Return one field of a batch, by the rule of `stack`; raise `NoRoom`."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        return list(values)
    kind = kinds.pop()
    if kind is np.ndarray:
        first = values[0]
        if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
            return _stacked(values)
    elif issubclass(kind, np.generic):
        return np.array(values, dtype=kind) if values[0].dtype.kind in "biufc" else list(values)
    elif kind is bool or kind is float:
        return np.array(values)
    elif kind is int and min(values) >= -(1 << 63) and max(values) < 1 << 63:
        return np.array(values, dtype=np.int64)
    return list(values)


def _stacked(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    try:
        return np.stack(values)
    except MemoryError:
        first, count = values[0], len(values)
        found = f"{count} arrays {list(first.shape)} of {first.dtype}, {count * first.nbytes} bytes"
        raise no_room("a batch", found) from None


def scatter(parts: Sequence[tuple[NDArray[np.intp], Batch]], rows: int) -> Batch:
    """Return one batch of `rows` samples from batches and their rows: arrays if all parts agree, else lists."""
    names = dict.fromkeys(name for _, batch in parts for name in batch)
    return {name: _scattered([(at, batch.get(name)) for at, batch in parts], rows) for name in names}


def groups(values: NDArray[Any]) -> Iterator[Rows]:
    """Yield the positions of each distinct value; a slice if all are the same."""
    if values.size == 0:
        return
    if values.min() == values.max():
        yield slice(0, values.size)
        return
    order = np.argsort(values, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(values[order])) + 1)


def _scattered(parts: Sequence[tuple[NDArray[np.intp], Any]], rows: int) -> Any:
    first = parts[0][1]
    if isinstance(first, np.ndarray) and all(
        isinstance(part, np.ndarray) and part.dtype == first.dtype and part.shape[1:] == first.shape[1:]
        for _, part in parts
    ):
        with in_memory("a batch", f"{rows} arrays {list(first.shape[1:])} of {first.dtype}"):
            joined = np.empty((rows, *first.shape[1:]), dtype=first.dtype)
        for at, part in parts:
            joined[at] = part
        return joined
    values: list[Any] = [None] * rows
    for at, part in parts:
        for row, value in zip(at.tolist(), [None] * len(at) if part is None else part, strict=True):
            values[row] = value
    return values

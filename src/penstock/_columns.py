"""Conversion of samples to columns, with one rule for all sources."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import Batch, Sample

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

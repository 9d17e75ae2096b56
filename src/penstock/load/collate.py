"""Conversion of columns to the batch that the training loop gets, with token ids in signed dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, TooLarge
from penstock.types import Batch

Collate: TypeAlias = Callable[[Batch], Any]
"""Columns of one rank's samples → the delivered batch. Runs in the loader's workers."""


def collate_columns(batch: Batch) -> Batch:
    """Return the columns of a batch, with the `cu_seqlens` of its windows joined.

    The loader's default `collate`.

    `cu_seqlens` becomes one int32[n + 1] over the batch's tokens without padding, and `max_seqlen` the longest document
    of the batch. If a blend also contains samples of other kinds, offsets stay a list: one array per window, and None
    for other samples.

    Args:
        batch: columns of k samples.

    Returns:
        The columns: arrays [k, ...], and lists for fields of varying shape.

    Examples:
        >>> import penstock as ps
        >>> from penstock.load import collate_columns
        >>> windows = ps.Chunk(8, labels="shift")(ps.open("corpus.pbin"))
        >>> collate_columns(windows.get_batch([0, 1]))["cu_seqlens"]
        array([ 0,  5,  8, 11, 16], dtype=int32)
    """
    windows = batch.get("cu_seqlens")
    if not isinstance(windows, list) or any(window is None for window in windows):
        return batch
    joined, longest = join_cu_seqlens(windows)
    return {**batch, "cu_seqlens": joined, "max_seqlen": longest}


def join_cu_seqlens(windows: list[NDArray[Any]]) -> tuple[NDArray[np.int32], int]:
    """Return int32[n + 1] over all windows and the longest document in them, from one int32[n_j + 1] per window."""
    if not windows:
        return np.zeros(1, np.int32), 0
    steps = np.diff(np.concatenate(windows).astype(np.int64))
    # No document spans two windows.
    inside = np.ones(len(steps), np.bool_)
    inside[np.cumsum([len(window) for window in windows])[:-1] - 1] = False
    all_lengths = steps[inside]
    ends = np.cumsum(all_lengths)
    if ends.size and int(ends[-1]) > np.iinfo(np.int32).max:
        raise ConfigError(
            "a batch has more tokens than int32 cu_seqlens can count",
            found=f"{int(ends[-1])} tokens",
            hint="Use a smaller micro_batch",
        )
    joined = np.zeros(ends.size + 1, np.int32)
    joined[1:] = ends
    return joined, int(all_lengths.max(initial=0))


@dataclass(frozen=True, slots=True)
class Then:
    """Composition of two functions; picklable if both are."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        return self.second(self.first(batch))


@dataclass(frozen=True, slots=True)
class ToSignedIds:
    """Function that converts token ids among columns, also in lists, to int64 or int32 arrays.

    Attributes:
        dtype: `"int64"` or `"int32"`.
        token_fields: fields that hold token ids, whatever their type; uint16, uint32 and uint64 fields always do.
    """

    dtype: str
    token_fields: frozenset[str]

    def __call__(self, columns: Any) -> Any:
        if not isinstance(columns, dict):
            return columns
        return {name: self.convert(name, value) for name, value in columns.items()}

    def convert(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self.convert(name, item) for item in value] if may_hold_arrays(value) else value
        if not isinstance(value, np.ndarray) or value.dtype.kind != "u":
            return value
        if value.dtype.itemsize == 1 and name not in self.token_fields:
            return value
        return _as_int32(name, value) if self.dtype == "int32" else value.astype(np.int64)


def may_hold_arrays(values: list[Any]) -> bool:
    """Return whether arrays may be among `values` or lists in them, judging by types only."""
    return any(issubclass(one, np.ndarray | list) for one in set(map(type, values)))


def signed_ids(data: Any, dtype: Any) -> ToSignedIds:
    """Return the conversion for samples of a source or stream, by its schema.

    Raises:
        ConfigError: the dtype is neither int64 nor int32, as text or as a framework's dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ("int64", "int32"):
        raise ConfigError("unsupported dtype for token ids", found=f"dtype={dtype!r}", expected="int64 or int32")
    return ToSignedIds(name, frozenset(field.name for field in data.schema.fields if field.kind == "tokens"))


def _as_int32(name: str, value: NDArray[Any]) -> NDArray[np.int32]:
    if value.dtype.itemsize >= 4 and value.size and int(value.max()) > np.iinfo(np.int32).max:
        raise TooLarge(
            f"{name} contains an id that doesn't fit in int32", found=int(value.max()), hint="Use dtype='int64'"
        )
    return value.astype(np.int32)

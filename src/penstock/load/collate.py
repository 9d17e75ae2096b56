"""Turns columns into the batch that the training loop gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import Batch

Collate: TypeAlias = Callable[[Batch], Any]
"""Columns of one rank's samples → what the training loop gets. Runs in the loader's workers."""


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
    """int32[n + 1] over all windows, and the longest document in them, from one int32[n_j + 1] a window."""
    if not windows:
        return np.zeros(1, np.int32), 0
    steps = np.diff(np.concatenate(windows).astype(np.int64))
    # Between two windows stands no document.
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
    """One step after the other; picklable where both are."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        return self.second(self.first(batch))

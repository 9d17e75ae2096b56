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
    """Columns as they are; `cu_seqlens` of the windows joined to one int32[n + 1], with `max_seqlen` over the batch.

    The joined offsets run over the batch's unpadded tokens, as those of one window do over its own. Where a blend gives
    samples of other kinds too, offsets stay as they are: one array a window, None for what is no window.
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
            "a batch holds more tokens than int32 cu_seqlens can count",
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

"""Numbers of lines: an index may leave lines out, and then a sample's number is not that of its line."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.types import IntArray

_BLOCK_BYTES = 1 << 24
_NEWLINE = 0x0A


def line_numbers(source: Any, indices: IntArray) -> IntArray:
    """int64[k]: the numbers, from 0, of the lines that samples of a JSONL source are; reads up to the last of them.

    Args:
        source: with `text` and `line_ranges`; see `penstock.reshape.rows.Lines`.
        indices: int64[k]: of its samples.
    """
    store, path = source.text
    starts = np.asarray(source.line_ranges()[indices, 0], np.int64)
    order, found, before = np.argsort(starts), np.zeros(len(starts), np.int64), 0
    starts, size_bytes = starts[order], store.size(path)
    for first in range(0, int(starts[-1]) if len(starts) else 0, _BLOCK_BYTES):
        ends = np.flatnonzero(
            np.frombuffer(store.get(path, first, min(_BLOCK_BYTES, size_bytes - first)), np.uint8) == _NEWLINE
        )
        here = (starts > first) & (starts <= first + _BLOCK_BYTES)
        found[order[here]] = before + np.searchsorted(ends, starts[here] - first)
        before += len(ends)
    return found

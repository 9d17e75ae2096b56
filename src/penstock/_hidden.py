"""Runs of tokens that are never shown: those of excluded documents. Each id is replaced.

Nothing moves: borders of documents, positions and lengths are unchanged, and are computed from the stored tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types import IntArray, TokenArray


@dataclass(frozen=True, slots=True)
class Hidden:
    """Ascending, disjoint runs of tokens, none of them empty.

    Attributes:
        starts: int64[m]: first token of each.
        stops: int64[m]: end of each.
        ids: int64[m]: the replacement id of each.
    """

    starts: IntArray
    stops: IntArray
    ids: IntArray

    def has(self, tokens: IntArray) -> NDArray[np.bool_]:
        """Return bool[k]: whether each of these tokens (int64[k]) is hidden."""
        return np.searchsorted(self.starts, tokens, side="right") > np.searchsorted(self.stops, tokens, side="right")

    def covered(self, tokens: TokenArray, start: int) -> TokenArray:
        """Return the visible tokens from `start` on; the same array if none of them is hidden."""
        first, stop = self._between(np.array([start]), len(tokens))
        if first[0] >= stop[0]:
            return tokens
        seen = tokens.copy()
        self._cover_row(seen, start, int(first[0]), int(stop[0]))
        seen.flags.writeable = False
        return seen

    def cover_windows(self, blocks: TokenArray, starts: IntArray) -> TokenArray:
        """Return the visible windows, uint[k, L], that begin at `starts`; modified in place if possible."""
        first, stop = self._between(starts, blocks.shape[1])
        rows = np.flatnonzero(first < stop)
        if rows.size and not blocks.flags.writeable:
            blocks = blocks.copy()
        for row in rows.tolist():
            self._cover_row(blocks[row], int(starts[row]), int(first[row]), int(stop[row]))
        return blocks

    def mask(self, starts: IntArray, length: int) -> NDArray[np.bool_] | None:
        """Return bool[k, length]: which tokens of the windows at `starts` are hidden; None if none is."""
        first, stop = self._between(starts, length)
        rows = np.flatnonzero(first < stop)
        if not rows.size:
            return None
        found = np.zeros((len(starts), length), np.bool_)
        for row in rows.tolist():
            for run in range(int(first[row]), int(stop[row])):
                begin, end = self._within(run, int(starts[row]), length)
                found[row, begin:end] = True
        return found

    def shifted(self, by: int, start: int = 0, stop: int = 1 << 62) -> Hidden:
        """Return the runs in `[start, stop)`, cut to that range, with `by` added to their places."""
        starts, stops = np.maximum(self.starts, start), np.minimum(self.stops, stop)
        kept = starts < stops
        return Hidden(starts[kept] + by, stops[kept] + by, self.ids[kept])

    def _between(self, starts: IntArray, length: int) -> tuple[IntArray, IntArray]:
        """Return int64[k] twice: the range of runs that overlap each window."""
        return (
            np.searchsorted(self.stops, starts, side="right"),
            np.searchsorted(self.starts, starts + length, side="left"),
        )

    def _within(self, run: int, start: int, length: int) -> tuple[int, int]:
        return max(int(self.starts[run]) - start, 0), min(int(self.stops[run]) - start, length)

    def _cover_row(self, row: TokenArray, start: int, first: int, stop: int) -> None:
        for run in range(first, stop):
            begin, end = self._within(run, start, len(row))
            row[begin:end] = self.ids[run]


def join_hidden(parts: list[Hidden]) -> Hidden:
    """Return the runs of several concatenated token sources."""
    return Hidden(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("starts", "stops", "ids")))


NO_RUNS = Hidden(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def stored_tokens(source: Any) -> tuple[Any, Hidden | None]:
    """Return the stored tokens of a source, only for borders, and the hidden ones; itself and None without a list."""
    stored: Callable[[], tuple[Any, Hidden]] | None = getattr(source, "stored_tokens", None)
    return (source, None) if stored is None else stored()


def without_loss(batch: dict[str, Any], hidden: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return a batch of windows without hidden targets in the loss.

    Args:
        batch: columns with `loss_mask` bool[k, L].
        hidden: bool[k, L]: which targets are hidden; None for none.
    """
    return batch if hidden is None else {**batch, "loss_mask": batch["loss_mask"] & ~hidden}

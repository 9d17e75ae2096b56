"""What a shuffle reads before it is done, said before it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.reshape.reorder import Passes
from penstock.reshape.rows import PIECE_UNITS, RUN_BYTES, Rows, total_units

_BY_BLOCKS = "shuffle by blocks during training instead: penstock.Shuffle(source, seed, mode='blocks')"


@dataclass(frozen=True, slots=True)
class ShuffleCost:
    """What a shuffle is going to read.

    Attributes:
        reads: at most so many requests of a store, or reads in random places of a disk.
        read_bytes: in all of them, of the source.
        scratch_bytes: what passes through a scratch file besides, which is written and read.
        is_remote: whether the source is in another store.
        cheaper: what would cost less; None where there is nothing to spare.
    """

    reads: int
    read_bytes: int
    scratch_bytes: int
    is_remote: bool
    cheaper: str | None


Announce = Callable[[ShuffleCost], None]
"""Called once, when the output is taken and nothing is written yet."""


def cost_of_rows(rows: Rows, passes: Passes, *, is_remote: bool) -> ShuffleCost:
    """The cost of `passes` over rows."""
    total, shards = passes.total_bytes, len(rows.borders()) - 1
    if not passes.gathers:
        reads = max(shards, -(-total // RUN_BYTES))
        return ShuffleCost(reads, total, total, is_remote, f"no scratch file with --memory-mb {2 * total // 2**20 + 1}")
    if rows.can_view():
        return ShuffleCost(len(rows), total, 0, is_remote, _BY_BLOCKS if len(passes.windows) > 1 else None)
    pieces = -(-total // rows.dtype.itemsize // PIECE_UNITS)
    return ShuffleCost(max(shards, pieces + 1), total, 0, is_remote, None)


def cost_of_places(rows: Rows, *, is_remote: bool) -> ShuffleCost:
    """The cost of shares of the new order, all of them together: each row is read where it lies."""
    total = total_units(rows) * rows.dtype.itemsize
    return ShuffleCost(len(rows), total, 0, is_remote, _BY_BLOCKS)


def cost_of_samples(count: int, total_bytes: int, *, is_remote: bool) -> ShuffleCost:
    """The cost of samples of tars, each of which is read where it lies."""
    advice = f"copy the tars to this machine first, or {_BY_BLOCKS}" if is_remote else _BY_BLOCKS
    return ShuffleCost(count, total_bytes, 0, is_remote, advice)

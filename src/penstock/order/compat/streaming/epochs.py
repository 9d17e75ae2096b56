"""Runs of MosaicML Streaming as endless orders: position → sample over all epochs, from any saved state on.

Positions count samples in the order of reading: global batch after global batch, and in each the first sample of every
rank, the second of every rank, … So rank r of W reads the positions `p ≡ r (mod W)`. Padding has no position: if the
original's last batches are short, the next epoch follows immediately.

An epoch is computed at its first use, once per host with a `Derived`, and mapped: 4 bytes per sample (8 from 2^32
samples on). Two epochs are kept at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_position, as_positions
from penstock._digest import digest
from penstock._kinds import Derived
from penstock.errors import ConfigError, ResumeMismatch
from penstock.order.compat.streaming.one_epoch import VERSION, StreamingRun, epoch_grid, epoch_samples
from penstock.order.compat.streaming.partition import padding_of
from penstock.types import IntArray

# Short epochs are computed in memory, which is faster than a file.
KEPT_FROM = 1 << 20

_NEEDED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


class NoState(ResumeMismatch, KeyError):
    """State with a missing entry: the original's `KeyError`."""


@dataclass(frozen=True, slots=True)
class StreamingState:
    """The original's state of a run."""

    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int
    initial_physical_nodes: int | None = None


def decode_state(state: Any) -> StreamingState:
    """Return the state of the original after checking its form.

    Raises:
        NoState: it isn't such a state.
    """
    if not isinstance(state, Mapping) or any(key not in state for key in _NEEDED):
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise NoState("not a state of a StreamingDataset", found=found, expected=", ".join(_NEEDED))
    first = state.get("initial_physical_nodes")
    return StreamingState(
        epoch=_count(state, "epoch", 0),
        sample_in_epoch=_count(state, "sample_in_epoch", 0),
        num_canonical_nodes=_count(state, "num_canonical_nodes", 1),
        shuffle_seed=_count(state, "shuffle_seed", 0),
        initial_physical_nodes=None if first is None else _count(state, "initial_physical_nodes", 1),
    )


def _count(state: Mapping[str, Any], key: str, least: int) -> int:
    value = state[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ResumeMismatch(f"invalid {key} in the state", found=repr(value), expected=f"{least} or more")
    return value


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch.

    Attributes:
        ids: its concatenated grid.
        gaps: int64[n_padding]: number of samples before each padding place.
    """

    ids: NDArray[Any]
    gaps: IntArray

    def at(self, places: IntArray) -> IntArray:
        """Return int64[k]: the samples at places that don't count padding."""
        return self.ids[places + np.searchsorted(self.gaps, places, side="right")].astype(np.int64)


class StreamingEpochs:
    """Samples of a run by position. Threads may share it; picklable; usable after fork.

    Attributes:
        run: everything that determines its epochs.
        epoch: the epoch of position 0.
        drop_first: samples of that epoch that were read before position 0.
    """

    version = VERSION

    def __init__(self, run: StreamingRun, epoch: int = 0, drop_first: int = 0, derived: Derived | None = None) -> None:
        self.run = run
        self.epoch = epoch
        self.drop_first = drop_first
        self._derived = derived
        self._sizes: tuple[int, int] | None = None
        self._epochs: dict[int, _Epoch] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (StreamingEpochs, (self.run, self.epoch, self.drop_first, self._derived))

    @property
    def sizes(self) -> tuple[int, int]:
        """Remaining samples of the first epoch, and samples of every later one.

        Raises:
            ConfigError: the arguments don't match each other or the data, or an epoch has no whole batch.
        """
        if self._sizes is None:
            first, later = epoch_samples(self.run, self.drop_first), epoch_samples(self.run)
            if later < 1:
                raise ConfigError("an epoch is smaller than one batch", found=f"{self.run.shares.epoch_size} samples")
            self._sizes = first, later
        return self._sizes

    def place(self, position: int) -> tuple[int, int]:
        """Return the epoch of a position, and its place among the samples read of that epoch."""
        position = as_position(position)
        first, size = self.sizes
        if position < first:
            return self.epoch, position
        later, place = divmod(position - first, size)
        return self.epoch + 1 + later, place

    def order(self, positions: IntArray, /) -> IntArray:
        positions = as_positions(positions)
        first, size = self.sizes
        behind = positions - first
        epochs = np.where(behind < 0, self.epoch, behind // size + self.epoch + 1)
        places = np.where(behind < 0, positions, behind % size)
        out = np.empty(positions.shape, dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            out[rows] = self._of_epoch(epoch).at(places[rows])
        return out

    def order_one(self, position: int, /) -> int:
        epoch, place = self.place(position)
        return int(self._of_epoch(epoch).at(np.array([place]))[0])

    def grid(self, epoch: int, drop_first: int = 0) -> NDArray[Any]:
        """Return [steps, ranks]: an epoch with its padding; see `partition`."""
        ranks = self.run.cluster.ranks
        if drop_first == self._drop_first(epoch):
            return self._of_epoch(epoch).ids.reshape(-1, ranks)
        return epoch_grid(self.run, epoch, drop_first)

    def params(self) -> dict[str, Any]:
        """Return everything that determines the order, as plain JSON; `shards` is a digest of their sizes."""
        run = self.run
        sizes = [np.asarray(shards, dtype="<i8").tobytes() for shards in run.shards]
        shards = hashlib.blake2b(b"".join(sizes), digest_size=8).hexdigest()
        return {
            "nodes": run.cluster.nodes,
            "ranks_per_node": run.cluster.ranks_per_node,
            "batch_size": run.cluster.batch,
            "num_canonical_nodes": run.canonical_nodes,
            "shuffle": run.shuffle,
            "shuffle_algo": run.shuffle_algo,
            "shuffle_seed": run.seed,
            "shuffle_block_size": run.block_size,
            "batching_method": run.batching_method,
            "partition_algo": run.partition_algo,
            "sampling_method": run.sampling_method,
            "sampling_granularity": run.sampling_granularity,
            "initial_physical_nodes": run.first_nodes,
            "choose": run.shares.choose.tolist(),
            "proportions": run.shares.proportions.tolist(),
            "shards": f"{'-'.join(str(len(shards)) for shards in run.shards)}-{shards}",
            "epoch": self.epoch,
            "sample_in_epoch": self.drop_first,
        }

    def _drop_first(self, epoch: int) -> int:
        return self.drop_first if epoch == self.epoch else 0

    def _of_epoch(self, epoch: int) -> _Epoch:
        known = self._epochs
        if epoch not in known:
            # Two epochs are kept: batches span both.
            latest = list(known.items())[-1:]
            known = {**dict(latest), epoch: self._make(epoch)}
            self._epochs = known
        return known[epoch]

    def _make(self, epoch: int) -> _Epoch:
        run, drop_first = self.run, self._drop_first(epoch)
        if self._derived is None or run.shares.epoch_size < KEPT_FROM:
            ids = epoch_grid(run, epoch, drop_first).reshape(-1)
            ids.flags.writeable = False
            return _Epoch(ids, _gaps(ids))
        dtype = "uint32" if sum(int(shards.sum()) for shards in run.shards) < (1 << 32) - 1 else "int64"
        known = {**self.params(), "epoch": epoch, "sample_in_epoch": drop_first, "workers": run.cluster.workers}
        key = f"{VERSION}-{digest(known)}"
        ids = self._derived.array(key, dtype, lambda: epoch_grid(run, epoch, drop_first).reshape(-1))
        return _Epoch(ids, self._derived.array(f"{key}-gaps", "int64", lambda: _gaps(ids)))


def _gaps(ids: NDArray[Any]) -> IntArray:
    padding = np.flatnonzero(ids == padding_of(ids.dtype)).astype(np.int64)
    return padding - np.arange(len(padding))

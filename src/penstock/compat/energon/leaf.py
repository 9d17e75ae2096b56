"""Samples of a stream, or of one epoch of it, by lanes: the innermost dataset of every manual composition."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.compat.energon.encoded import Encoded
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.worker import WorkerConfig, current_batch


class Samples(SavableDataset[T_sample]):
    """Cooked and usually encoded samples; skipped and failed samples are missing.

    Lane l of n has the positions l, l + n, … of each pass.

    Args:
        encoded: outputs of the sample at each position.
        size: number of samples of a pass; None for an endless stream.
        epoch: number of samples of an epoch of the data, for `len`.
        worker_config: rank, world size and workers.
    """

    def __init__(self, encoded: Encoded, size: int | None, epoch: int, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config)
        self._encoded = encoded
        self._size = size
        self._epoch = epoch

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield the steps of a lane from a place.

        A place contains the pass, the position in it, the number of outputs delivered for that position, the distance
        to the next position, and the lane's number and count, which determine where the next pass begins.
        """
        number, index, done, stride, first, count = _start(lane) if place is None else place
        several = self._encoded.work.is_generator
        while self._size is None or index < self._size:
            position = np.array([index + (self._size or 0) * number], np.int64)
            at = self._index(lane, number, index, first, count)
            outputs = self._encoded.each(position, current_batch, lambda _, at=at: at)
            for delivered, sample in enumerate(outputs, 1):
                if delivered > done:
                    at = (index, delivered) if several else (index + stride, 0)
                    yield sample, (number, *at, stride, first, count)
            index, done = index + stride, 0
        return number + 1, first, 0, count, first, count

    def _index(self, lane: Lane, number: int, index: int, first: int, count: int) -> int:
        """Count the samples of a worker as the original does: those of the lane before this one."""
        a_pass = 0 if self._size is None else -(-(self._size - first) // count)
        return (number * a_pass + (index - first) // count) * lane.turns + lane.turn

    def split(self, place: Place, part: int, parts: int) -> Place:
        if place is None:
            return None
        number, index, done, stride, first, count = place
        own = (index + stride * part, 0 if part else done, stride * parts)
        return (number, *own, first + count * part, count * parts)

    def identity(self) -> list[Any]:
        return ["samples", self._encoded.fingerprint, self._size]

    def len_worker(self, worker_idx: int | None = None) -> int:
        config = self.worker_config
        workers = config.world_size * max(1, config.num_workers)
        share, more = divmod(self._epoch if self._size is None else self._size, workers)
        return share + (config.rank + config.world_size * (worker_idx or 0) < more)

    def config(self) -> dict[str, Any]:
        return {"type": "Samples", "data": self._encoded.recipe()}

    def __str__(self) -> str:
        return self._encoded.summary()


def _start(lane: Lane) -> Place:
    return 0, lane.number, 0, lane.count, lane.number, lane.count

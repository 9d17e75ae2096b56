"""`LimitDataset`."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample, Walk
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset


class LimitDataset(BaseWrapperDataset[T_sample]):
    """The first samples of a dataset, the same ones in each pass.

    Args:
        dataset: the samples.
        length: how many on this rank; its workers share them.
        reset_after_epoch: the dataset begins anew after each pass, as it does in any case.
        worker_config: of the dataset.
    """

    def __init__(
        self, dataset: SavableDataset[Any], length: int, *, reset_after_epoch: bool = False, worker_config: WorkerConfig
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length
        self.reset_after_epoch = reset_after_epoch

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Place: samples that are left of the lane's share, and the place below."""
        left, below = (lane.share(self.length), None) if place is None else place
        walk = Walk(self.dataset, lane, below)
        while left > 0:
            try:
                sample = next(walk)
            except StopIteration:
                break
            left -= 1
            yield sample, (left, walk.place)
        walk.close()
        return None

    def split(self, place: Place, part: int, parts: int) -> Place:
        """What is left is shared."""
        if place is None:
            return None
        left, below = place
        return left // parts + (part < left % parts), self.dataset.split(below, part, parts)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """The worker's share."""
        workers, worker = max(1, self.worker_config.num_workers), worker_idx or 0
        return min(self.dataset.len_worker(worker_idx), self.length // workers + (worker < self.length % workers))

    def len_rank(self) -> int:
        """Samples of this rank in a pass."""
        return min(self.length, self.dataset.len_rank())

    def settings(self) -> dict[str, Any]:
        """The length."""
        return {"length": self.length}

"""Modalities' sampler: its order bit for bit, without lists of Python integers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from penstock.compat.modalities.bases import Sampler
from penstock.order.compat.modalities import RankShare, modalities_order
from penstock.store.derived import DerivedCache

_AT_ONCE = 1 << 14


class ResumableDistributedSampler(Sampler):
    """Indices of one rank, from any place of an epoch on.

    A shuffled order is kept once a host, in a mapped file of 4 bytes a sample; this process takes a few MB.

    Attributes:
        global_num_samples: samples of the dataset that are not skipped.
        local_num_samples: samples of this rank.
        global_num_samples_effective: samples of all ranks.

    Args:
        dataset: only its length counts.
        rank: this process's place among the data-parallel ones.
        num_replicas: how many there are; by default torch's world size.
        epoch: with the seed, decides the order; may be set later.
        shuffle: whether to shuffle at all.
        seed: the order's.
        drop_last: leave out what can't be shared evenly, instead of repeating the order's beginning.
        skip_num_global_samples: samples consumed before, over all ranks.

    Raises:
        ConfigError: no such rank, or more to skip than there is.
    """

    def __init__(
        self,
        dataset: Sized,
        rank: int,
        num_replicas: int | None = None,
        epoch: int | None = 0,
        shuffle: bool | None = False,
        seed: int | None = 0,
        drop_last: bool | None = False,
        skip_num_global_samples: int | None = 0,
    ) -> None:
        self.dataset = dataset
        self.rank = rank
        self.num_replicas = _world_size() if num_replicas is None else num_replicas
        self.epoch = epoch or 0
        self.shuffle = bool(shuffle)
        self.seed = seed or 0
        self.drop_last = bool(drop_last)
        self.skip_num_global_samples = skip_num_global_samples or 0
        self._share = RankShare(len(dataset), rank, self.num_replicas, self.drop_last, self.skip_num_global_samples)
        self.global_num_samples = len(dataset) - self.skip_num_global_samples
        self.local_num_samples = len(self._share)
        self.global_num_samples_effective = self.local_num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.local_num_samples

    def __iter__(self) -> Iterator[int]:
        order = modalities_order(len(self.dataset), self.seed, self.epoch, DerivedCache()) if self.shuffle else None
        for start in range(0, len(self), _AT_ONCE):
            places = self._share.places(start, start + _AT_ONCE)
            yield from (places if order is None else np.take(order, places)).tolist()


def _world_size() -> int:
    distributed: Any = importlib.import_module("torch.distributed")
    return distributed.get_world_size()

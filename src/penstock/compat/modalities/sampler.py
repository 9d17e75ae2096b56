"""Modalities' sampler: its order bit for bit, without lists of Python integers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from penstock.compat.torch_bases import Sampler
from penstock.order.compat.modalities import RankShare, modalities_order
from penstock.store.derived import DerivedCache

_AT_ONCE = 1 << 14


class ResumableDistributedSampler(Sampler):
    """Sampler that yields the indices of one rank, from any place in an epoch.

    A shuffled order is stored once per host, in a mapped file with 4 bytes per sample; each process uses a few MB.

    Attributes:
        global_num_samples: samples of the dataset that aren't skipped.
        local_num_samples: samples of this rank.
        global_num_samples_effective: samples of all ranks.

    Args:
        dataset: only its length is used.
        rank: data-parallel rank of this process.
        num_replicas: number of ranks; by default torch's world size.
        epoch: determines the order together with the seed; can be set later.
        shuffle: whether to shuffle.
        seed: seed of the order.
        drop_last: drop the samples that can't be divided evenly, instead of repeating the start of the order.
        skip_num_global_samples: samples already consumed, over all ranks.

    Raises:
        ConfigError: the rank is invalid, or more samples are skipped than there are.

    Examples:
        >>> from penstock.compat.modalities import PackedMemMapDatasetBase, ResumableDistributedSampler
        >>> dataset = PackedMemMapDatasetBase("corpus.pbin", "input_ids")
        >>> [list(ResumableDistributedSampler(dataset, rank, num_replicas=2)) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 5]]

        Resume after 2 samples over all ranks:

        >>> list(ResumableDistributedSampler(dataset, rank=0, num_replicas=2, skip_num_global_samples=2))
        [2, 4]
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

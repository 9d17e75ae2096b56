"""`PackingDataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, Calls, given, name_of
from penstock.compat.energon.wrappers.windows import START, Taking, split_window
from penstock.errors import ConfigError


class PackingDataset(BaseWrapperDataset[T_sample]):
    """Dataset of packs of samples selected from a buffer. The last buffer of a lane may be smaller.

    Args:
        dataset: the samples.
        buffer_size: number of samples passed to `pre_packer`.
        pre_packer: function from a buffer's samples to packs; samples in no pack are dropped. May raise `SkipSample`.
        final_packer: function from the samples of a pack to one sample, or a generator.
        final_packer_stateless: the result depends only on the samples.
        sample_encoder: function from one sample of a selected pack to one.
        sample_encoder_stateless: the result depends only on the sample.
        packer_config: recorded in `config`.
        pre_packer_failure_tolerance: number of consecutive buffers that may fail; 0 for any number.
        final_packer_failure_tolerance: number of consecutive packs that may fail.
        sample_encoder_failure_tolerance: number of consecutive samples that may fail.
        worker_config: config of the dataset.

    Examples:
        >>> from penstock.compat.energon import MapDataset, PackingDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> captions = MapDataset(samples, lambda sample: sample.caption, worker_config=config)
        >>> def pairs(captions):
        ...     return [captions[start : start + 2] for start in range(0, len(captions), 2)]
        >>> packs = PackingDataset(captions, 4, pairs, ", ".join, worker_config=config)
        >>> list(get_loader(packs))
        ['picture 0, picture 1', 'picture 2, picture 3', 'picture 4, picture 5']
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,
        packer_config: Any = None,
        pre_packer_failure_tolerance: int = 100,
        final_packer_failure_tolerance: int = 100,
        sample_encoder_failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if buffer_size < 1:
            raise ConfigError("a packing buffer needs at least one sample", found=buffer_size)
        self.buffer_size = buffer_size
        self.pre_packer = pre_packer
        self.final_packer = final_packer
        self.final_packer_stateless = final_packer_stateless
        self.sample_encoder = sample_encoder
        self.sample_encoder_stateless = sample_encoder is None or sample_encoder_stateless
        self.packer_config = packer_config
        self._select = Calls(pre_packer, worker_config, pre_packer_failure_tolerance)
        self._pack = Calls(final_packer, worker_config, final_packer_failure_tolerance)
        encoder = (
            None if sample_encoder is None else Calls(sample_encoder, worker_config, sample_encoder_failure_tolerance)
        )
        self._encode = encoder

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield packs from a place: that of `windows`, counted in packs, then the packs of earlier windows."""
        number, below, done, after, packs_before = (*START, 0) if place is None else place
        taking = Taking(self.dataset, lane, below)
        while True:
            taking.upto(self.buffer_size)
            samples, taking.samples = taking.samples, []
            if not samples:
                return number, taking.end, 0, None, packs_before
            if after is None:
                after = taking.place
            else:
                taking = Taking(self.dataset, lane, after)
            packs = [pack for packs in self._select(samples, lane, number) for pack in packs if pack]
            count, packed, chosen = 0, 0, sum(map(len, packs))
            for index, pack in enumerate(packs):
                for one in self._packed(pack, lane, packs_before + index, number * self.buffer_size + packed):
                    count += 1
                    if count > done:
                        yield one, (number, below, count, after, packs_before)
                # As many samples are taken as packs make room for, as in the original: it shows in batch numbers.
                packed += len(pack)
                taking.upto(self.buffer_size - chosen + packed)
            number, below, done, after, packs_before = number + 1, after, 0, None, packs_before + len(packs)

    def _packed(self, pack: list[Any], lane: Lane, number: int, first: int) -> Iterator[Any]:
        ready = pack
        if self._encode is not None:
            ready = [made for call, one in enumerate(pack, first) for made in self._encode(one, lane, call)]
        return self._pack.each(ready, lane, number) if ready else iter(())

    def split(self, place: Place, part: int, parts: int) -> Place:
        """See `windows`."""
        return split_window(self.dataset, (*START, 0) if place is None else place, part, parts)

    def can_restore_sample(self) -> bool:
        """Return whether the functions are stateless and the inner datasets can restore samples."""
        return self.final_packer_stateless and self.sample_encoder_stateless and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Return size and functions."""
        named = {"buffer_size": self.buffer_size, "pre_packer": name_of(self.pre_packer)}
        encoder = None if self.sample_encoder is None else name_of(self.sample_encoder)
        more = {"final_packer": name_of(self.final_packer), "sample_encoder": encoder}
        return {**named, **more, **given("packer_config", self.packer_config)}

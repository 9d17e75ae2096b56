"""`PackingDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrappers.base import BaseWrapperDataset, Calls, given, name_of
from penstock.compat.energon.wrappers.windows import START, split_window, take
from penstock.errors import ConfigError


class PackingDataset(BaseWrapperDataset[T_sample]):
    """Packs of samples that are chosen in a buffer. The last buffer of a lane may hold fewer.

    Args:
        dataset: the samples.
        buffer_size: samples that `pre_packer` chooses from.
        pre_packer: a buffer's samples → packs; what is in none is dropped. May raise `SkipSample`.
        final_packer: the samples of a pack → one, or a generator.
        final_packer_stateless: its result depends on the samples alone.
        sample_encoder: one sample of a chosen pack → one.
        sample_encoder_stateless: its result depends on the sample alone.
        packer_config: for `config`.
        pre_packer_failure_tolerance: buffers in a row that may fail; 0 for any number.
        final_packer_failure_tolerance: packs in a row that may fail.
        sample_encoder_failure_tolerance: samples in a row that may fail.
        worker_config: of the dataset.
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
            raise ConfigError("a packing buffer holds at least one sample", found=buffer_size)
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
        """Place: see `windows`; what is delivered of a window are packs."""
        number, below, done, after = START if place is None else place
        while True:
            window = take(self.dataset, lane, below, self.buffer_size)
            after = window.after if after is None else after
            if not window.samples:
                return number, window.end, 0, None
            chosen = [pack for packs in self._select(window.samples, lane, number) for pack in packs if pack]
            count = 0
            for index, pack in enumerate(chosen):
                for one in self._packed(pack, lane, number * self.buffer_size + index):
                    count += 1
                    if count > done:
                        yield one, (number, below, count, after)
            number, below, done, after = number + 1, after, 0, None

    def _packed(self, pack: list[Any], lane: Lane, number: int) -> tuple[Any, ...]:
        ready = pack
        if self._encode is not None:
            ready = [made for one in pack for made in self._encode(one, lane, number)]
        return self._pack(ready, lane, number) if ready else ()

    def split(self, place: Place, part: int, parts: int) -> Place:
        """See `windows`."""
        return split_window(self.dataset, place, part, parts)

    def can_restore_sample(self) -> bool:
        """Whether the functions are stateless, and all below can."""
        return self.final_packer_stateless and self.sample_encoder_stateless and super().can_restore_sample()

    def settings(self) -> dict[str, Any]:
        """Size and functions."""
        named = {"buffer_size": self.buffer_size, "pre_packer": name_of(self.pre_packer)}
        encoder = None if self.sample_encoder is None else name_of(self.sample_encoder)
        more = {"final_packer": name_of(self.final_packer), "sample_encoder": encoder}
        return {**named, **more, **given("packer_config", self.packer_config)}

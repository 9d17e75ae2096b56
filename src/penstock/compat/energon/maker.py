"""Makes batches of encoded samples by a task encoder, and reads the keys by which they are made again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import GeneratorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.compat.energon.passes import Cut
from penstock.compat.energon.stages import SAMPLE, Group
from penstock.compat.energon.worker import WorkerConfig, begin, end
from penstock.cook.cooking import position_of
from penstock.errors import ConfigError


class BatchMaker:
    """Columns of samples → (batch, bool[k]: which samples count).

    Args:
        encoder: its `batch` and `encode_batch`.
        config: of the run.
        batches: False delivers single samples.
        samples_per_step: of all ranks, by which batches are counted.
    """

    def __init__(self, encoder: Any, config: WorkerConfig, batches: bool, samples_per_step: int) -> None:
        self._encoder = encoder
        self._config = config
        self._batches = batches
        self._samples_per_step = samples_per_step

    def __call__(self, columns: Mapping[str, Any]) -> tuple[Any, NDArray[np.bool_]]:
        """See the class."""
        samples: list[Any] = [one[0] for one in columns[SAMPLE]]
        number, counts = None, True
        if isinstance(samples[0], Cut):
            number, counts = samples[0].number, samples[0].counts
            samples = list(samples[0].samples)
        elif isinstance(samples[0], Group):
            samples = list(samples[0].samples)
        elif not self._batches:
            return samples[0], _all(counts, 1)
        if not self._batches and number is not None:
            return samples[0], _all(counts, 1)
        return self.batch(samples, number), _all(counts, len(samples))

    def batch(self, samples: list[Any], number: int | None = None) -> Any:
        """The batch of some samples; without a number of its own it is counted by the first one's position."""
        number = batch_number(samples, self._samples_per_step) if number is None else number
        before = begin(self._config, batch=number)
        try:
            batch = self._encoder.batch(samples)
            made = batch if isinstance(batch, GeneratorType) else self._encoder.encode_batch(batch)
        finally:
            end(before)
        if isinstance(made, GeneratorType):
            found = "a generator"
            raise ConfigError("batch and encode_batch give one batch for one", found=found)
        return made


@functools.lru_cache
def _all(value: bool, samples: int) -> NDArray[np.bool_]:
    """bool[samples], shared by all batches of this size: read-only."""
    valid = np.full(samples, value, np.bool_)
    valid.flags.writeable = False
    return valid


def batch_number(samples: list[Any], samples_per_step: int) -> int:
    """A number that is the batch's own: of its first sample."""
    first = samples[0]
    key = first.get("__restore_key__") if isinstance(first, dict) else getattr(first, "__restore_key__", None)
    if not isinstance(key, tuple) or not key:
        return 0
    kind, inner = unwrapped(key)[-1]
    if kind == "lane":
        lane, window, offset = inner
        return ((window << 16) + lane << 16) + offset
    return inner // samples_per_step if isinstance(inner, int) else 0


def unwrapped(key: Sequence[Any]) -> list[tuple[str, Any]]:
    """What a restore key says: ("output", number) for each level, then ("lane", three numbers) or ("cook", number)."""
    found: list[tuple[str, Any]] = []
    while isinstance(key, (tuple, list)) and key:
        if key[0] == "output" and len(key) == 3:
            found.append(("output", int(key[1])))
            key = key[2]
        elif key[0] == "lane" and len(key) == 4:
            return [*found, ("lane", tuple(map(int, key[1:])))]
        else:
            return [*found, ("cook", position_of(key))]
    raise ConfigError("no restore key of this loader", found=repr(key)[:120])

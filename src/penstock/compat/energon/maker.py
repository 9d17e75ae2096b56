"""Makes batches of encoded samples by a task encoder, and reads the keys by which they are made again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.compat.energon.encoded import SAMPLE, TURN
from penstock.compat.energon.passes import Cut
from penstock.compat.energon.pulled import Group
from penstock.compat.energon.work import OF_BATCH
from penstock.compat.energon.worker import WorkerConfig, begin, end
from penstock.cook.cooking import position_of
from penstock.errors import ConfigError


class BatchMaker:
    """Columns of samples → (batch, bool[k]: which samples count); None of no samples.

    Args:
        encoder: its `batch` and `encode_batch`.
        config: of the run.
        batches: False delivers single samples.
        turns: samples, or groups, of this rank that a batch takes.
    """

    def __init__(self, encoder: Any, config: WorkerConfig, batches: bool, turns: int) -> None:
        self._encoder = encoder
        self._config = config
        self._batches = batches
        self._turns = turns

    def __call__(self, columns: Mapping[str, Any]) -> tuple[Any, NDArray[np.bool_]]:
        samples: list[Any] = [one[0] for one in columns[SAMPLE]]
        first = samples[0]
        if isinstance(first, Cut):
            number, counts, samples = first.number, first.counts, list(first.samples)
            if not samples:
                return None, _all(counts, 0)
        else:
            number, counts = int(columns[TURN][0]) // self._turns, True
        if isinstance(first, Group):
            samples = list(first.samples)
        elif not self._batches:
            return samples[0], _all(counts, 1)
        return self.batch(samples, number), _all(counts, len(samples))

    def batch(self, samples: list[Any], number: int) -> Any:
        """The batch of some samples.

        Args:
            samples: one or more.
            number: of the rank's batch.
        """
        before = begin(self._config, batch=number, index=number)
        try:
            batch = self._encoder.batch(samples)
            made = batch if isinstance(batch, GeneratorType) else self._encoder.encode_batch(batch)
        finally:
            end(before)
        if isinstance(made, GeneratorType):
            found = "a generator"
            raise ConfigError("batch and encode_batch must return one batch each", found=found)
        return made


@functools.lru_cache
def _all(value: bool, samples: int) -> NDArray[np.bool_]:
    """Return bool[samples], read-only: all batches of this size share it."""
    valid = np.full(samples, value, np.bool_)
    valid.flags.writeable = False
    return valid


@dataclass(frozen=True, slots=True)
class Key:
    """What a restore key of a sample says.

    Attributes:
        output: which of several samples that were made of one.
        position: of the raw sample, where no lane gave it.
        of: batch and row for which it was encoded, where those are not its position's.
        lane: number, window, offset in it, and outputs of the lane before the window.
    """

    output: int
    position: int = 0
    of: tuple[int, int] | None = None
    lane: tuple[int, int, int, int] | None = None


def read_key(key: Any) -> Key:
    """See `Key`.

    Raises:
        ConfigError: it is no key of a sample of this loader.
    """
    output, of, rest = 0, None, key
    while isinstance(rest, (tuple, list)) and rest:
        kind, *more = cast(Sequence[Any], rest)
        if kind == "output" and len(more) == 2:
            output, rest = int(more[0]), more[1]
        elif kind == OF_BATCH and len(more) == 3:
            of, rest = (int(more[0]), int(more[1])), more[2]
        elif kind == "lane" and len(more) == 4:
            lane, window, offset, before = map(int, more)
            return Key(output, lane=(lane, window, offset, before))
        else:
            return Key(output, position_of(rest), of)
    raise ConfigError("not a restore key of this loader", found=repr(key)[:120])

"""Substitutes for samples that can't be read: from the same child, at the same place in the batch, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger
from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError, Excluded, FormatError
from penstock.types import Batch, IntArray

_log = logger()

_ATTEMPTS = 64
_PROBES, _RUN = 256, 16
_FEWEST = 1000


class Substitutions:
    """Replaces unreadable samples of a stream and counts them by child. One a worker: not thread-safe.

    Which sample stands in depends on the stream and the position alone, never on ranks, workers or earlier failures.

    Args:
        stream: names stand-ins; its `locate` names children.
        share: the largest share of a child's positions that may be replaced. It is compared with what this worker
            has read of the child, and against 1,000 positions while that is less.
    """

    def __init__(self, stream: Any, share: float) -> None:
        self._stream = stream
        self._share = share
        self._replaced: Counter[tuple[str, ...]] = Counter()

    def mend(
        self, positions: IntArray, read: Callable[[IntArray], Batch], num_read: int
    ) -> tuple[Batch, NDArray[np.bool_]]:
        """A batch for `positions` (int64[k]) in which something can't be read, and bool[k]: what was replaced.

        Args:
            positions: of the batch.
            read: reads a batch; raises a `FormatError` where one of its samples can't be read, `Excluded` where one is
                excluded, which counts for no limit.
            num_read: positions that this worker has read before.

        Raises:
            FormatError: more of a child than its share, or 64 stand-ins in a row, can't be read.
        """
        mended = positions.copy()
        for place, position in enumerate(positions.tolist()):
            error = _failure(read, position)
            if error is not None:
                if isinstance(error, FormatError):
                    self._count(position, num_read + place + 1, error)
                mended[place] = self._stand_in(position, read, error)
        return read(mended), mended != positions

    def _stand_in(self, position: int, read: Callable[[IntArray], Batch], error: FormatError | Excluded) -> int:
        stream: SupportsSubstitutes = self._stream
        for attempt in range(_ATTEMPTS):
            try:
                other = stream.substitute(position, attempt)
            except ConfigError:
                raise error from None
            if _failure(read, other) is None:
                if isinstance(error, FormatError):
                    _log.warning("position %d can't be read (%s); using position %d instead", position, error, other)
                return other
        raise error

    def _count(self, position: int, num_read: int, error: FormatError) -> None:
        child = self._stream.locate(position).path
        self._replaced[child] += 1
        read_of_child = num_read * self._share_of(child, position)
        if self._replaced[child] > self._share * max(read_of_child, _FEWEST):
            raise FormatError(
                f"too many samples of {'/'.join(child) or 'the stream'} can't be read",
                found=f"{self._replaced[child]} of about {read_of_child:.0f} positions",
                expected=f"at most a fraction of {self._share:g} (substitute_limit)",
                hint=f"The last error: {error}",
            ) from error

    def _share_of(self, child: tuple[str, ...], position: int) -> float:
        """About which share of the positions before `position` the child has."""
        # Runs of places in one lane: neighbours in a blend are found together, far places each for themselves.
        lanes = self._stream.lanes
        apart = max(lanes * _RUN, position // (_PROBES // _RUN))
        ends = range(position, max(-1, position - apart * (_PROBES // _RUN)), -apart)
        probes = [end - lanes * back for end in ends for back in range(_RUN) if end >= lanes * back]
        return sum(self._stream.locate(probe).path == child for probe in probes) / len(probes)


def _failure(read: Callable[[IntArray], Batch], position: int) -> FormatError | Excluded | None:
    try:
        read(np.array([position], np.int64))
    except (FormatError, Excluded) as error:
        return error
    return None

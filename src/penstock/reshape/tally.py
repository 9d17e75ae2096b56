"""A writer that counts what it is given, and keeps nothing: for runs that only say what they would do."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.types import Batch, IntArray, Manifest, Sample


class Tally:
    """Counts rows and their units; see `penstock.abc.Writer`.

    Args:
        format: of the dataset that is not written.
        unit_bytes: width of its tokens; 1 of what is no tokens.
        is_tokens: whether units are tokens; else they are bytes.
    """

    def __init__(self, format: str, unit_bytes: int, *, is_tokens: bool) -> None:
        self._format = format
        self._unit_bytes = unit_bytes
        self._is_tokens = is_tokens
        self._samples = 0
        self._units = 0

    def take(self, lengths: IntArray) -> None:
        """Count rows of these lengths in units."""
        self._samples += len(lengths)
        self._units += int(lengths.sum())

    def write_run(self, data: NDArray[Any], lengths: IntArray, /) -> None:
        """See `penstock.abc.SupportsRuns`."""
        self.take(lengths)

    def write(self, sample: Sample, /) -> None:
        """See `penstock.abc.Writer`."""
        self.write_batch({name: [value] for name, value in sample.items()})

    def write_batch(self, batch: Batch, /) -> None:
        """See `penstock.abc.Writer`; of documents of tokens alone."""
        self.take(np.array([len(one) for one in batch["tokens"]], np.int64))

    def commit(self) -> Manifest:
        """What was counted; the bytes are those of the units alone, without what the format adds."""
        size_bytes = self._units * self._unit_bytes
        return Manifest(self._format, self._samples, size_bytes, self._units if self._is_tokens else None)

    def abort(self) -> None:
        """Nothing is there to be dropped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

"""Parts of tokens → samples with one column `tokens`: how `pack` writes MDS."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock.abc import Writer
from penstock.types import Batch, IntArray, Manifest, Sample

COLUMN = "tokens"


class ColumnParts:
    """A writer of samples that takes finished runs of tokens, a document a sample; see `penstock._kinds.TokenParts`.

    Memory: the part at hand, mapped, and what the writer holds.

    Args:
        writer: takes `{"tokens": uint[n]}`.
        token_bytes: width of the tokens in the parts.
    """

    def __init__(self, writer: Writer, token_bytes: int) -> None:
        self._writer = writer
        self._dtype = np.dtype(f"<u{token_bytes}")

    @property
    def part_bytes(self) -> int:
        """Width of the tokens that `write_part` takes."""
        return self._dtype.itemsize

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents whose tokens lie back to back in a file."""
        tokens = np.memmap(path, self._dtype, "r", start_bytes, (int(doc_lengths.sum()),))
        for document in np.split(np.asarray(tokens), np.cumsum(doc_lengths)[:-1]):
            self._writer.write({COLUMN: document})

    def write(self, sample: Sample, /) -> None:
        """Add one document."""
        self._writer.write(sample)

    def write_batch(self, batch: Batch, /) -> None:
        """Add k documents."""
        self._writer.write_batch(batch)

    def commit(self) -> Manifest:
        """Make the dataset visible, durably."""
        return self._writer.commit()

    def abort(self) -> None:
        """Discard everything written so far."""
        self._writer.abort()

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        return self._writer.__exit__(kind, error, trace)

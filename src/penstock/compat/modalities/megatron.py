"""The blocks of Modalities 0.5.0's Megatron dataset as they really are; for looking into runs that trained on them.

It takes the block length, in tokens, for a number of bytes, begins 12 bytes late, and goes on inside a document that is
longer than a block without counting what it has read of it. See `docs/decisions/windows.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock._index import as_index, as_indices
from penstock.abc import TokenSource
from penstock.errors import ConfigError
from penstock.types import Batch, IntArray, Sample

_HEADER_BYTES = 12


class OriginalMegatron:
    """Blocks of `block_size` bytes over a token source, cut where the original cuts. Memory: 8 bytes a block."""

    def __init__(self, source: TokenSource, block_size: int) -> None:
        width = source.dtype.itemsize
        self._source = source
        self._tokens = block_size // width
        # 12 bytes are whole tokens for every width, and so are all places.
        self._starts = np.array(_starts_bytes(source.doc_starts * width, block_size * width), dtype=np.int64) // width

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> Sample:
        return {"tokens": self.get_batch([as_index(index, len(self))])["tokens"][0]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """`{"tokens": uint[k, block_size // width]}` at `indices`.

        Raises:
            ConfigError: a block that reaches beyond the tokens; the original fails there, too.
        """
        starts = self._starts[as_indices(indices, len(self))]
        if len(starts) and int(starts.max()) + self._tokens > self._source.num_tokens:
            raise ConfigError("the block of the original extends beyond the last token", found=int(starts.max()))
        return {"tokens": self._source.gather(starts, self._tokens)}


def _starts_bytes(doc_starts_bytes: IntArray, block_bytes: int) -> list[int]:
    starts: list[int] = []
    begin, held = _HEADER_BYTES, 0
    for offset, length in zip(doc_starts_bytes.tolist(), np.diff(doc_starts_bytes).tolist(), strict=False):
        if held + length < block_bytes:
            held += length
            continue
        starts.append(begin)
        if held + length == block_bytes or length > block_bytes:
            begin, held = begin + block_bytes, 0
        else:
            begin, held = offset, length
    return starts

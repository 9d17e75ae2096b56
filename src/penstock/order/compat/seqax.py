"""Bit-exact order of seqax's ShufflingLoader, without its buffers.

Sequences are cut into read blocks, blocks are shuffled, and assigned to streams; each stream fills one buffer after
another with its blocks, and shuffles the buffer's sequences. Batches take the same number of rows from each stream.
So the sequence of row b in step s is computed as follows:

1. `blocks = sequences // Q`, rounded down to a multiple of the streams N; `order = permutation(seed, blocks)`.
2. Row b belongs to stream `t = b // (B / N)`, and is its k-th sequence: `k = s · (B / N) + b mod (B / N)`.
3. `m, q = divmod(k, R · Q)`: the place q in the stream's buffer m.
4. `place = permutation(seed + 1 + m · N + t, sequences in the buffer)[q]`.
5. `block = order[(m · R + place // Q) · N + t]`, and the sequence is `block · Q + place mod Q`.

Checked against the loader itself (seqax 42cf9af). Memory: 4 bytes per sequence (8 from 2^32 on), mapped with
a `Derived`, and 40 bytes per sequence of one buffer during the computation.
"""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._access import excluded_of, prefetch_of
from penstock._arrays import as_index
from penstock._digest import digest
from penstock._kinds import Derived
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.node.over import Finder, Reindexed
from penstock.order.fisher_yates import swap_walk
from penstock.types import IntArray

VERSION = "seqax-1"

T = TypeVar("T")


def seqax_permutation(seed: int, n: int) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): the walk from the last place to the first, by raw Philox words."""
    places = np.arange(n, dtype=np.uint32 if n < 1 << 32 else np.int64)
    if n:
        words = np.random.Philox(operator.index(seed)).random_raw(n)
        targets = (words % np.arange(1, n + 1, dtype=np.uint64)).astype(np.int64)
        swap_walk(places, n - 1, targets[::-1], descending=True)
    return places


@dataclass(frozen=True, slots=True)
class SeqaxParams:
    """Arguments of the loader, under its own names.

    Raises:
        ConfigError: a number is below 1, or the streams don't divide the batch.
    """

    batch: int
    streams: int
    read_blocks_per_shuffle_buffer: int
    sequences_per_read_block: int
    seed: int

    def __post_init__(self) -> None:
        counts = {name: value for name, value in asdict(self).items() if name != "seed"}
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"invalid number of {name}", found=value, expected="1 or more")
        if self.seed < 0:
            raise ConfigError("Philox doesn't accept negative seeds", found=self.seed, expected="0 or more")
        if self.batch % self.streams:
            raise ConfigError("streams must divide the batch", found=f"{self.streams} streams, batch {self.batch}")

    def read_blocks(self, sequences: int) -> int:
        """Return the number of read blocks in use: whole ones, equally many per stream."""
        blocks = sequences // self.sequences_per_read_block
        return blocks - blocks % self.streams

    def steps(self, sequences: int) -> int:
        return self.read_blocks(sequences) * self.sequences_per_read_block // self.batch


def seqax_order(sequences: int, params: SeqaxParams) -> NDArray[Any]:
    """Return uint32[steps · batch] (int64 from 2^32 sequences on): the sequence of each row of each step.

    Takes about 0.1 µs per sequence, once.

    Raises:
        ConfigError: there is less than one read block per stream, or there are 2^32 blocks or more.
    """
    blocks, steps = params.read_blocks(sequences), params.steps(sequences)
    if not 0 < blocks < 1 << 32:
        raise ConfigError(
            "there must be a read block for each stream, and fewer than 2^32",
            found=f"{sequences} sequences",
            expected=f"at least {params.streams * params.sequences_per_read_block}",
        )
    order = seqax_permutation(params.seed, blocks).astype(np.int64)
    rows = params.batch // params.streams
    dtype = np.uint32 if sequences < 1 << 32 else np.int64
    out = np.empty((steps, params.streams, rows), dtype)
    for stream in range(params.streams):
        out[:, stream] = _stream_sequences(order, params, stream, steps * rows, dtype).reshape(steps, rows)
    return out.reshape(-1)


def _stream_sequences(order: IntArray, params: SeqaxParams, stream: int, count: int, dtype: type) -> NDArray[Any]:
    """Return [count]: the first sequences of one stream, buffer after buffer."""
    size, per_buffer = params.sequences_per_read_block, params.read_blocks_per_shuffle_buffer
    own = order[stream :: params.streams]
    out = np.empty(count, dtype)
    done = 0
    for number, first in enumerate(range(0, len(own), per_buffer)):
        if done >= count:
            break
        blocks = own[first : first + per_buffer]
        seed = params.seed + 1 + number * params.streams + stream
        block, place = np.divmod(seqax_permutation(seed, len(blocks) * size).astype(np.int64), size)
        found = (blocks[block] * size + place)[: count - done]
        out[done : done + len(found)] = found
        done += len(found)
    return out


class SeqaxPass(Reindexed[T]):
    """`source` in the order of a seqax run: one pass, row b of step s at `s · batch + b`.

    Sequences that don't fill a block per stream, or a last batch, are never visited, as in the original. With
    `Loader(…, global_batch=batch)` the batches are seqax's.

    Raises:
        ConfigError: the source is too small.
    """

    kind, version = "seqax-pass", VERSION

    def __init__(self, source: Source[T], params: SeqaxParams, derived: Derived | None = None) -> None:
        super().__init__(source)
        self.params = params
        self._derived = derived
        self._size = len(source)
        self._steps = params.steps(self._size)
        self._sequences: NDArray[Any] | None = None
        self.prefetch = self._prefetch if prefetch_of(source) is not None else None
        if not self._steps:
            found = f"{self._size} sequences"
            expected = f"a batch of {params.batch}, and a read block for each stream"
            raise ConfigError("too few sequences for one step", found=found, expected=expected)

    @property
    def steps(self) -> int:
        return self._steps

    def sequences(self, step: int) -> IntArray:
        """Return int64[batch]: indices in `source` of the rows of a step."""
        batch = self.params.batch
        step = as_index(step, self._steps)
        return self._order()[step * batch : (step + 1) * batch].astype(np.int64)

    def __reduce__(self) -> tuple[object, ...]:
        return (SeqaxPass, (self.source, self.params, self._derived))

    def source_index(self, index: Any) -> Any:
        return self._order()[index].astype(np.int64)

    def __len__(self) -> int:
        return self._steps * self.params.batch

    def own(self) -> dict[str, Any]:
        return asdict(self.params)

    def shown(self) -> dict[str, Any]:
        return {**self.own(), "steps": self._steps}

    def identity(self) -> tuple[Any, ...]:
        return (VERSION, self.own(), self.source.fingerprint)

    @property
    def excluded_indices(self) -> IntArray | None:
        """Rows with excluded samples, int64[k] ascending; None without an exclude list."""
        found = excluded_of(self.source)
        return None if found is None else np.flatnonzero(np.isin(self._order(), found))

    def find(self, finder: Finder) -> IntArray:
        return np.flatnonzero(np.isin(self._order(), finder.indices(self.source)))

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:  # a pass never reads whole blocks
        source: Any = self.source
        source.prefetch(self.source_index(batches))

    def _order(self) -> NDArray[Any]:
        if self._sequences is None:
            dtype = "uint32" if self._size < 1 << 32 else "int64"
            if self._derived is None:
                self._sequences = seqax_order(self._size, self.params)
            else:
                key = f"{VERSION}-{digest(self._size, asdict(self.params))}"
                self._sequences = self._derived.array(key, dtype, lambda: seqax_order(self._size, self.params))
        return self._sequences

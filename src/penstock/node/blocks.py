"""Starts of storage blocks: an array, or arithmetic if nearly all blocks have one size.

A source without blocks is cut into even ones. At 10^12 samples these are 2.4·10^8, and an array of their starts would
take 2 GB in every process. So sources built on others pass on `storage_blocks()`. `block_starts`, the array of
`SupportsBlocks`, is made from it on request.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.types import IntArray

EVEN_BLOCK = 4096
_RUN_BLOCKS = 1 << 16
_MOST_ODD = 4  # one block in this many: beyond that an array takes no more memory


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlocks:
    """Blocks as an array of their starts.

    Attributes:
        array: int64[count + 1]: first sample of each, and the number of samples.
    """

    array: IntArray

    @property
    def count(self) -> int:
        return len(self.array) - 1

    @property
    def size(self) -> int:
        return int(self.array[-1])

    def starts(self) -> IntArray:
        """Return int64[count + 1]: first sample of each, and the number of samples."""
        return self.array

    def start_of(self, block: Any) -> Any:
        """Return int64[k]: the first sample of each of some blocks."""
        return self.array[block]

    def block_of(self, index: Any) -> Any:
        """Return int64[k]: the block of each of some samples."""
        return np.searchsorted(self.array, index, side="right") - 1

    def digest(self) -> str:
        """Return 16 hex digits of the digest of the borders."""
        return hashlib.blake2b(self.array.astype("<i8").tobytes(), digest_size=8).hexdigest()


class EvenBlocks:
    """Blocks that nearly all have `even` samples, by arithmetic; the others are listed.

    Memory: 40 bytes per block of another size.

    Args:
        even: samples per block, at least 1.
        count: number of blocks.
        odd: int64[k]: numbers of the blocks of other sizes, ascending.
        sizes: int64[k]: their samples.
    """

    __slots__ = ("_after", "_begins", "_ends", "_surplus", "count", "even", "odd", "size", "sizes")

    def __init__(self, even: int, count: int, odd: IntArray, sizes: IntArray) -> None:
        self.even = even
        self.count = count
        self.odd = odd
        self.sizes = sizes
        # Samples of the odd blocks before the i-th beyond `even` each; negative if they are shorter.
        self._surplus = np.append(0, np.cumsum(sizes - even))
        self.size = count * even + int(self._surplus[-1])
        self._begins = odd * even + self._surplus[:-1]
        self._ends = np.append(0, self._begins + sizes)
        self._after = np.append(0, odd + 1)

    def __reduce__(self) -> tuple[object, ...]:
        return (EvenBlocks, (self.even, self.count, self.odd, self.sizes))

    def starts(self) -> IntArray:
        """Return int64[count + 1]: first sample of each, and the number of samples."""
        starts = np.empty(self.count + 1, np.int64)
        at = 0
        for run in self.runs():
            starts[at : at + len(run)] = run
            at += len(run)
        return starts

    def runs(self) -> Iterator[IntArray]:
        """Yield `starts()` in runs."""
        begin = 0
        for first in range(0, self.count, _RUN_BLOCKS):
            sizes = np.full(min(_RUN_BLOCKS, self.count - first), self.even, np.int64)
            inside = slice(*np.searchsorted(self.odd, (first, first + len(sizes))))
            sizes[self.odd[inside] - first] = self.sizes[inside]
            ends = np.cumsum(sizes) + begin
            yield ends - sizes
            begin = int(ends[-1])
        yield np.array([begin], np.int64)

    def start_of(self, block: Any) -> Any:
        """Return int64[k]: the first sample of each of some blocks."""
        return block * self.even + self._surplus[np.searchsorted(self.odd, block)]

    def block_of(self, index: Any) -> Any:
        """Return int64[k]: the block of each of some samples."""
        last = np.searchsorted(self._begins, index, side="right")  # number of odd blocks that start up to there
        return self._after[last] + np.maximum((index - self._ends[last]) // self.even, -1)

    def digest(self) -> str:
        """Return 16 hex digits of the digest of the borders. Takes about 20 ns per block, and is cached."""
        return _digest(self.even, self.count, self.odd.tobytes(), self.sizes.tobytes())

    def cut(self, start: int, stop: int) -> Blocks:
        """Return the blocks inside `[start, stop)`, counted from `start`; cut ones at both ends."""
        if start >= stop:
            return StoredBlocks(np.zeros(1, np.int64))
        first, last = int(self.block_of(start)), int(self.block_of(stop - 1))
        inside = slice(*np.searchsorted(self.odd, (first, last + 1)))
        sizes = dict(zip(self.odd[inside].tolist(), self.sizes[inside].tolist(), strict=True))
        for end in {first, last}:
            begin = int(self.start_of(end))
            stop_of_end = begin + sizes.get(end, self.even)
            sizes[end] = min(stop, stop_of_end) - max(start, begin)
        odd = np.array(sorted(sizes), np.int64)
        found = EvenBlocks(self.even, last + 1 - first, odd - first, np.array([sizes[one] for one in odd.tolist()]))
        return found if 0 not in sizes.values() else without_empty(found)


Blocks: TypeAlias = StoredBlocks | EvenBlocks
"""Storage blocks of a source."""


def even_blocks(size: int, block_size: int = EVEN_BLOCK) -> EvenBlocks:
    """Return even blocks of `size` samples, the last of which may be shorter."""
    count = -(-size // block_size)
    rest = size - (count - 1) * block_size if count else block_size
    odd = np.array([count - 1] if rest != block_size else [], np.int64)
    return EvenBlocks(block_size, count, odd, np.full(len(odd), rest, np.int64))


def blocks_of(source: Source[Any], block_size: int | None = None) -> Blocks:
    """Return the source's own blocks, or even ones.

    Args:
        source: any source.
        block_size: samples per even block, instead of the source's own blocks; 4,096 for sources without blocks.

    Raises:
        ConfigError: the block size is below 1.
    """
    if block_size is not None:
        if block_size < 1:
            what = "a block needs at least one sample"
            raise ConfigError(what, found=f"block_size {block_size}", expected="1 or more")
        return even_blocks(len(source), block_size)
    own = own_blocks(source)
    return even_blocks(len(source)) if own is None else own


def own_blocks(source: Source[Any]) -> Blocks | None:
    """Return a source's own blocks, if it has any."""
    known = capability(source, "storage_blocks")
    if known is not None:
        return known()
    starts = capability(source, "block_starts")
    return None if starts is None else StoredBlocks(np.asarray(starts, dtype=np.int64))


def preferred_mode(*sources: Any) -> str:
    """Return the default mode of `Shuffle`: `"blocks"` if one of the sources prefers it."""
    return "blocks" if any(capability(source, "preferred_mode") == "blocks" for source in sources) else "global"


def joined(parts: Iterable[Blocks]) -> Blocks:
    parts = list(parts)
    count = sum(part.count for part in parts)
    evens = {part.even for part in parts if isinstance(part, EvenBlocks)}
    odd, sizes, before = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    if len(evens) == 1:
        most_odd = count // _MOST_ODD
        for part in parts:
            is_even = isinstance(part, EvenBlocks)
            if (len(part.odd) if is_even else part.count) > most_odd:
                break
            odd.append((part.odd if is_even else np.arange(part.count)) + before)
            sizes.append(part.sizes if is_even else np.diff(part.array))
            before += part.count
            most_odd -= len(odd[-1])
        else:
            return EvenBlocks(evens.pop(), count, np.concatenate(odd), np.concatenate(sizes))
    return StoredBlocks(_joined_starts([part.starts() for part in parts]))


def without_empty(blocks: Blocks) -> StoredBlocks:
    """Return the blocks without empty ones."""
    return StoredBlocks(np.unique(blocks.starts()))


def _joined_starts(parts: Sequence[IntArray]) -> IntArray:
    ends = np.cumsum([0, *(int(part[-1]) for part in parts)], dtype=np.int64)
    return np.concatenate([*(part[:-1] + end for part, end in zip(parts, ends, strict=False)), ends[-1:]])


@functools.lru_cache(64)
def _digest(even: int, count: int, odd: bytes, sizes: bytes) -> str:
    blocks = EvenBlocks(even, count, _array(odd), _array(sizes))
    found = hashlib.blake2b(digest_size=8)
    for run in blocks.runs():
        found.update(run.astype("<i8").tobytes())
    return found.hexdigest()


def _array(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, np.int64)

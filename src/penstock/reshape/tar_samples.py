"""The samples of tars: where their parts lie, and these as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock._secrets import redact
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.store.place import Place
from penstock.types import IntArray, Sample

FORMAT = "webdataset"

RowsAt = Callable[[int, int], IntArray]
"""(first, stop) → int64[stop - first]: what is at these places of an order."""


@dataclass(frozen=True, slots=True)
class TarSamples:
    """The samples of one split of a dataset, or of all its shards.

    Attributes:
        shards: `(place, table, places of its samples)`.
        excluded: how many the exclude list has taken out.
    """

    shards: tuple[tuple[Place, ShardTable, IntArray], ...]
    excluded: int = 0

    def without(self, indices: IntArray | None) -> TarSamples:
        """The same without the samples at `indices`: int64[k], rising."""
        if indices is None:
            return self
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        cuts = np.split(indices, np.searchsorted(indices, borders[1:-1]))
        shards = tuple(
            (shard, table, np.delete(places, cut - first))
            for (shard, table, places), cut, first in zip(self.shards, cuts, borders, strict=False)
        )
        return TarSamples(shards, len(indices))

    def with_prefixes(self, prefixes: Sequence[str]) -> TarSamples:
        """Put a prefix before all keys of each shard."""
        shards: list[tuple[Place, ShardTable, IntArray]] = []
        for (shard, table, places), prefix in zip(self.shards, prefixes, strict=True):
            shards.append((shard, replace(table, keys=[prefix + key for key in table.keys]), places))
        return replace(self, shards=tuple(shards))

    def __len__(self) -> int:
        return sum(len(places) for *_, places in self.shards)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts of all samples of its shards."""
        return sum(int(table.sizes.sum()) for _, table, _ in self.shards)

    def at(self, rows: Iterable[IntArray]) -> Iterator[Sample]:
        """The samples at `rows`, runs of at most a few hundred, in that order."""
        for some in rows:
            block = self.block(some)
            yield from block.samples(block.read())

    def block(self, some: IntArray) -> Block:
        """What is to be read of the samples at `some`, shard by shard."""
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        numbers = np.searchsorted(borders, some, side="right") - 1
        reads: list[tuple[Place, list[tuple[int, int]]]] = []
        found: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        count = 0
        for number in np.unique(numbers).tolist():
            shard, table, places = self.shards[number]
            ranges: list[tuple[int, int]] = []
            chosen = np.flatnonzero(numbers == number)
            for row, place in zip(chosen.tolist(), places[some[chosen] - borders[number]].tolist(), strict=True):
                stored = range(*table.part_starts[place : place + 2].tolist())
                starts = table.contents[stored.start : stored.stop].tolist()
                sizes = table.sizes[stored.start : stored.stop].tolist()
                names = [table.part_names[part] for part in stored]
                parts = [*zip(names, starts, sizes, strict=True), *table.linked.get(place, ())]
                ranges += [(start, start + size) for _, start, size in parts]
                found[row] = (table.keys[place], [(part[0], count + number) for number, part in enumerate(parts)])
                count += len(parts)
            reads.append((shard, ranges))
        return Block(reads, [found[row] for row in range(len(some))])


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples, by names and ranges; picklable.

    Attributes:
        reads: ranges of shards, which hold the parts.
        names: key of each sample; and name of each of its parts, with its number among the ranges.
    """

    reads: list[tuple[Place, list[tuple[int, int]]]]
    names: list[tuple[str, list[tuple[str, int]]]]

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"{len(self.names)} samples of {redact(self.reads[0][0].path)}" if self.reads else "no sample"

    def read(self) -> Iterator[bytes | memoryview]:
        """The parts, in the order of the ranges."""
        for shard, ranges in self.reads:
            yield from shard.store.get_ranges(shard.path, ranges)

    def samples(self, contents: Iterator[bytes | memoryview]) -> Iterator[Sample]:
        """The samples that these contents are the parts of."""
        parts = list(contents)
        for key, names in self.names:
            yield {"__key__": key} | {name: parts[number] for name, number in names}

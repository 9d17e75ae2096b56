"""Samples of litdata's chunks."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from penstock._arrays import as_index, as_indices
from penstock._tree import line
from penstock.errors import Corrupt
from penstock.formats.tokens.litdata.chunks import Items, arrow_rows, read_items
from penstock.formats.tokens.litdata.index import Index, damaged
from penstock.formats.tokens.litdata.leaves import (
    Decode,
    children_of,
    count_leaves,
    decoder,
    field_of,
    is_readable,
    names_of,
    unflatten,
)
from penstock.formats.tokens.rows import PartedRows
from penstock.store.base import Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.types import Extent, Field, IntArray, OpenOptions, Place, Sample, Schema

_HELD = 2


class LitdataRows(PartedRows):
    """Samples of litdata's chunks; see `penstock.abc.Source`. Made by `penstock.open`.

    Memory: two chunks, unless they are mapped. A sample is a dict; of a tuple or a list the names are "0", "1", and of
    a single value "value".
    """

    title = "litdata"

    def __init__(self, store: Store, path: str, options: OpenOptions, index: Index, again: Any) -> None:
        super().__init__(store, path, options, (one.items for one in index.chunks), again)
        self.index = index
        self._is_compressed = index.level in ("chunk", "batch")  # chunks are decompressed whole
        self._held: tuple[tuple[int, Items, list[Any] | None], ...] = ()  # replaced as a whole: threads need no lock
        self._require_columns(self._names)

    @property
    def schema(self) -> Schema:
        """Values of a sample."""
        fields: list[Field] = []
        at = 0
        for name, spec in zip(self._names, self._specs, strict=True):
            count = count_leaves(spec, self.index.path)
            is_leaf = count == 1 and spec.get("type") is None
            if name in self._wanted:
                fields.append(field_of(name, self.index.leaves[at]) if is_leaf else Field(name, "json"))
            at += count
        return Schema(tuple(fields))

    def _find_fingerprint(self) -> str:
        """Return a digest of the index, and of samples of the chunks."""
        head, files = self.index.fingerprint.encode(), chunk_files(self.index, self.path)
        name = f"litdata {self.index.fingerprint}"
        return once_a_host(
            self._store, self._read_files()[1], name, lambda: sample_fingerprint(self._store, "litdata", head, files)
        )

    def _read_files(self) -> tuple[Store, list[str]]:
        return self._store, [path for _, path in chunk_files(self.index, self.path)]

    @property
    def block_starts(self) -> IntArray:
        """First sample of each chunk, and the number of samples: int64[n_chunks + 1]."""
        return self._starts

    @property
    def size_bytes(self) -> int:
        """Size of all chunks, uncompressed."""
        return sum(one.size_bytes for one in self.index.chunks)

    def details(self) -> dict[str, Any]:
        """Return the number of chunks, and their compression."""
        return {"chunks": len(self.index.chunks), "compressed": self.index.level, "columns": list(self._names)}

    def __getitem__(self, index: int, /) -> Sample:
        return self.get_samples(np.array([as_index(index, len(self))]))[0]

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order; each chunk is read once."""
        chosen = as_indices(indices, len(self))
        chunks = np.searchsorted(self._starts, chosen, side="right") - 1
        found: list[Any] = [None] * len(chosen)
        for chunk in np.unique(chunks).tolist():
            items, rows = self._items(chunk)
            for place in np.flatnonzero(chunks == chunk).tolist():
                number = int(chosen[place] - self._starts[chunk])
                found[place] = self._row(rows[number], items) if rows is not None else self._sample(items, number)
        return found

    def place_of(self, index: int, /) -> Place:
        """Return the location of sample `index`: its chunk."""
        chunk = self.index.chunks[self._find(as_index(index, len(self)))[0]]
        return Place(extents=(Extent(chunk.path, 0, self._store.size(chunk.path)),))

    def summary(self) -> str:
        return line("litdata", {"path": self.path, "chunks": len(self.index.chunks), "samples": len(self)}, None)

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = names_of(self.index.spec, self.index.path)
        count = count_leaves(self.index.spec, self.index.path)
        if count != len(self.index.leaves) or len(set(names)) != len(names):
            raise damaged(self.index.path, "the tree of a sample has a different number of values", count)
        return names

    @cached_property
    def _specs(self) -> list[Any]:
        return children_of(self.index.spec, self.index.path)

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(self._names if self._options.columns is None else self._options.columns)

    @cached_property
    def _decoders(self) -> tuple[Decode | None, ...]:
        """Decoder of each value; None for values that aren't requested."""
        counts = [count_leaves(spec, self.index.path) for spec in self._specs]
        ends = np.cumsum([0, *counts]).tolist()
        leaves = [self.index.leaves[start:stop] for start, stop in itertools.pairwise(ends)]
        others = [name for name, own in zip(self._names, leaves, strict=True) if all(map(is_readable, own))]
        found = list[Decode | None]()
        for name, own in zip(self._names, leaves, strict=True):
            wanted = name in self._wanted
            found += [decoder(leaf, self.index.path, name, others) if wanted else None for leaf in own]
        return tuple(found)

    def _items(self, chunk: int) -> tuple[Items, list[Any] | None]:
        for number, items, rows in self._held:
            if number == chunk:
                return items, rows
        items = read_items(self._store, self.index.chunks[chunk], self.index.level)
        rows = None if items.arrow is None else arrow_rows(items)
        self._held = ((chunk, items, rows), *self._held[: _HELD - 1])
        return items, rows

    def _row(self, row: Any, items: Items) -> Sample:
        if not isinstance(row, dict):
            raise damaged(items.chunk.path, "a row is not a sample", type(row).__name__)
        return {name: value for name, value in row.items() if name in self._wanted or name not in self._names}

    def _sample(self, items: Items, number: int) -> Sample:
        try:
            values = list(self._values(items.get(number)))
        except (ValueError, struct.error) as error:
            if isinstance(error, Corrupt):
                raise
            found = f"item {number}: {error!s:.80}"
            raise damaged(items.chunk.path, "a sample is damaged", found, None, int(items.offsets[number])) from None
        rest = iter(values)
        made = {
            name: unflatten(spec, rest, self.index.path) for name, spec in zip(self._names, self._specs, strict=True)
        }
        return {name: value for name, value in made.items() if name in self._wanted}

    def _values(self, data: memoryview) -> Iterator[Any]:
        count = len(self._decoders)
        sizes = struct.unpack_from(f"<{count}I", data)
        at = 4 * count
        if at + sum(sizes) != len(data):
            raise ValueError(f"{len(data)} bytes for values of {sum(sizes)}")
        for size, decode in zip(sizes, self._decoders, strict=True):
            yield None if decode is None else decode(data[at : at + size])
            at += size


def chunk_files(index: Index, folder: str) -> list[tuple[str, str]]:
    """Return `(name, path)` of all chunks."""
    return [(one.path[len(folder) + 1 :], one.path) for one in index.chunks]

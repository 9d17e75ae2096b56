"""Samples of shards as rows of bytes, as they are stored, without decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.abc import SupportsMmap
from penstock.codec.fields import mds_field
from penstock.errors import ConfigError
from penstock.formats.shards.files import Folder, offset_table, read_whole
from penstock.formats.shards.find_index import index_folder
from penstock.formats.shards.merge import Part, common_layout
from penstock.formats.shards.source import ShardSource, codec_of
from penstock.store._files import on_network
from penstock.store.exclude_list import NO_LIST, ExcludeList
from penstock.store.place import Place
from penstock.types import IntArray, OpenOptions, Sample


@dataclass(frozen=True, slots=True)
class TakenOut:
    """Excluded samples of a dataset; rows are numbered without them.

    Attributes:
        indices: int64[k], rising, in the whole dataset; None for none.
        listed: their exclude list.
        carried: the entries of excluded samples that are copied, by their row numbers.
    """

    indices: IntArray | None = None
    listed: ExcludeList = NO_LIST
    carried: ExcludeList = NO_LIST

    def __len__(self) -> int:
        return 0 if self.indices is None else len(self.indices)


NOTHING_TAKEN_OUT = TakenOut()


class SampleRows:
    """The samples of a directory of shards; their units are bytes.

    Each shard begins at a multiple of `piece_bytes` in the space of all. Memory: 16 bytes per sample, and one shard if
    it is compressed or not on a local disk.

    Raises:
        ConfigError: shards of different columns, or no shard.
        FormatError: a shard is damaged.
    """

    __slots__ = (
        *("_bases", "_borders", "_decode", "_folder", "_held", "_lengths", "_shards", "_starts", "dtype", "format"),
        *("_viewable", "layout", "place", "source", "taken_out"),
    )

    def __init__(
        self,
        source: ShardSource,
        place: Place,
        format: str,
        options: OpenOptions,
        piece_bytes: int,
        taken_out: TakenOut = NOTHING_TAKEN_OUT,
    ) -> None:
        self.source = source
        self.taken_out = taken_out
        self.place = place
        self.format = format
        self.dtype = np.dtype(np.uint8)
        self._shards = source.shards
        self.layout = common_layout(self._shards, place.path)
        folder = index_folder(place.store, place.path, options.split)
        self._folder = Folder(place.store, folder, isinstance(place.store, SupportsMmap))
        self._decode = codec_of(self.layout, options).decode
        self._held: tuple[int, NDArray[np.uint8]] | None = None
        local = place.is_local and not on_network(folder)
        self._viewable = local and all(shard.zip_data is None for shard in self._shards)
        sizes = [-(-shard.raw_data.size_bytes // piece_bytes) * piece_bytes for shard in self._shards]
        self._bases = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._borders: list[int] = source.block_starts.tolist()
        self._starts = np.empty(len(source), np.int64)
        self._lengths = np.empty(len(source), np.int64)
        for number, first in enumerate(self._borders[:-1]):
            table = self._table(number)
            self._starts[first : first + len(table) - 1] = table[:-1] + self._bases[number]
            self._lengths[first : first + len(table) - 1] = np.diff(table)
        if taken_out.indices is not None:
            self._starts = np.delete(self._starts, taken_out.indices)
            self._lengths = np.delete(self._lengths, taken_out.indices)
            missing = np.searchsorted(taken_out.indices, self._borders)
            self._borders = np.unique(np.array(self._borders) - missing).tolist()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def part(self) -> Part:
        return Part(self._folder.store, self._folder.path)

    def writer_options(self) -> dict[str, Any]:
        """Return writer options for the columns, compression and hashes of the first shard.

        Raises `ConfigError` if a writer would store these columns differently.
        """
        layout = self.layout
        sizes = tuple(mds_field(one).size_bytes for one in layout.column_encodings) if layout.format == "mds" else None
        if layout.column_sizes != sizes or (
            layout.format != "json" and list(layout.column_names) != sorted(layout.column_names)
        ):
            hint = "Write them again with `penstock convert`"
            what = "these columns would be stored in a different order or with different sizes"
            raise ConfigError(what, path=self.place.path, found=", ".join(layout.column_names), hint=hint)
        options: dict[str, Any] = {
            "columns": dict(zip(layout.column_names, layout.column_encodings, strict=True)),
            "size_limit": layout.size_limit,
            "compression": layout.compression,
            "hashes": list(dict.fromkeys(layout.hashes)),
        }
        if layout.newline is not None:
            options["newline"] = layout.newline
        if layout.format == "xsv":
            options["separator"] = layout.separator
        return options

    def borders(self) -> list[int]:
        return self._borders

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        return self._starts[rows], self._lengths[rows]

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        number = int(np.searchsorted(self._bases, start, side="right")) - 1
        if self._held is None or self._held[0] != number:
            self._held = None  # one shard at a time
            self._held = (number, self._data(number))
        base = int(self._bases[number])
        return self._held[1][start - base : stop - base]

    def can_view(self) -> bool:
        return self._viewable

    def view(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self.read(start, stop)

    def release(self) -> None:
        """Release a mapped shard; others would have to be read again."""
        if self._viewable:
            self._held = None

    def prove(self, first: int, stop: int) -> None:
        """Do nothing: shards are compared with the hashes in their index when they are read."""

    def can_pick(self) -> bool:
        return all(shard.zip_data is None for shard in self._shards)

    def pick(self, rows: IntArray) -> NDArray[np.uint8]:
        starts, lengths = self.ranges(rows)
        numbers = np.searchsorted(self._bases, starts, side="right") - 1
        found = [b""] * len(rows)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            first = starts[here] - self._bases[number]
            ranges = list(zip(first.tolist(), (first + lengths[here]).tolist(), strict=True))
            path = self._folder.place(self._shards[number].raw_data)
            for place, data in zip(here.tolist(), self._folder.store.get_ranges(path, ranges), strict=True):
                found[place] = data
        return np.frombuffer(b"".join(found), np.uint8)

    def decode(self, row: memoryview) -> Sample:
        return self._decode(row, 0, len(row))

    def _data(self, number: int) -> NDArray[np.uint8]:
        shard = self._shards[number]
        return read_whole(self._folder, shard, shard.raw_data, shard.zip_data)[0]

    def _table(self, number: int) -> IntArray:
        """Return int64[n + 1]: offsets of the samples of a shard in its data file."""
        shard, folder = self._shards[number], self._folder
        if shard.raw_meta is None:
            head, path, floor_bytes = self._data(number), folder.place(shard.raw_data), 4 * (shard.samples + 2)
        else:
            head = read_whole(folder, shard, shard.raw_meta, shard.zip_meta)[0]
            path, floor_bytes = folder.place(shard.raw_meta), 0
        return offset_table(head, shard.samples, floor_bytes, shard.raw_data.size_bytes, path).astype(np.int64)

"""The original's view of a dataset's shards, and their parts on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from penstock._arrays import as_index
from penstock.formats._exclusions import stored
from penstock.formats.shards.index_json import Shard, ShardFile
from penstock.store.cache_room import about_copy, remove_copy
from penstock.types import IntArray, Sample


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a shard, as recorded in the index.

    Attributes:
        basename: path in the dataset's folder.
        bytes: its size.
        hashes: algorithm → hex digest.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str]


class Reader:
    """One shard: its properties, and its samples by number.

    Attributes:
        samples: number of its samples.
        compression: `code:level`, or None.
        hashes: algorithms of its digests.
        size_limit: size limit of its writer.
        format: its format, as in the index.
        column_names, column_encodings, column_sizes: parallel lists; None if its format has none.
        raw_data, zip_data, raw_meta, zip_meta: its files; None for files that it doesn't have.
        file_pairs: the data file and the meta file, each raw and compressed.
    """

    def __init__(self, source: Any, shard: Shard, first: int, split: str) -> None:
        self._source = source
        self._first = first
        layout = shard.layout
        self.samples = shard.samples
        self.compression = layout.compression
        self.hashes = list(layout.hashes)
        self.size_limit = layout.size_limit
        self.format = layout.format
        self.column_names = list(layout.column_names)
        self.column_encodings = list(layout.column_encodings)
        self.column_sizes = None if layout.column_sizes is None else list(layout.column_sizes)
        self.split = split
        self.dirname = (
            str(stored(source).folder.path).removesuffix(f"/{split}") if split else stored(source).folder.path
        )
        self.raw_data, self.zip_data = _info(shard.raw_data), _info(shard.zip_data)
        self.raw_meta, self.zip_meta = _info(shard.raw_meta), _info(shard.zip_meta)
        pairs = ((self.raw_data, self.zip_data), (self.raw_meta, self.zip_meta))
        self.file_pairs = [(raw, zipped) for raw, zipped in pairs if raw is not None]

    @property
    def size(self) -> int:
        """Samples."""
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> Sample:
        return self._source[self._first + as_index(at, self.samples)]

    def __iter__(self) -> Iterator[Sample]:
        return (self[at] for at in range(self.samples))

    def get_item(self, idx: int) -> Sample:
        """Sample `idx` of the shard."""
        return self[idx]

    def get_raw_size(self) -> int:
        """Return the uncompressed size of its files in bytes."""
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Return the size of its compressed files in bytes, or None without any."""
        zipped = [one.bytes for _, one in self.file_pairs if one is not None]
        return sum(zipped) if zipped else None

    def get_max_size(self) -> int:
        """Return the total size of its files in bytes."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Return the bytes that the original keeps of it; here, the stored file stays in the cache folder."""
        return self.get_max_size() if keep_zip else self.get_raw_size()


class Shards(Sequence[Reader]):
    """Shards of all streams, in order; each is created on access.

    Attributes:
        samples_per_shard: number of samples of each shard, int64[k].
        per_stream: number of shards of each stream, int64[streams].
    """

    def __init__(self, sources: Sequence[Any], splits: Sequence[str]) -> None:
        self._sources = [stored(one) for one in sources]
        self._as_read = list(sources)
        self._splits = list(splits)
        starts = [np.asarray(one.block_starts, np.int64) for one in self._sources]
        self.samples_per_shard: IntArray = np.concatenate([np.diff(one) for one in starts])
        self.per_stream: IntArray = np.array([len(one) - 1 for one in starts], np.int64)

    @cached_property
    def offsets(self) -> IntArray:
        """int64[streams]: number of the first shard of each stream."""
        return np.cumsum(self.per_stream) - self.per_stream

    def __len__(self) -> int:
        return len(self.samples_per_shard)

    @overload
    def __getitem__(self, at: int) -> Reader: ...
    @overload
    def __getitem__(self, at: slice) -> list[Reader]: ...
    def __getitem__(self, at: int | slice) -> Reader | list[Reader]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        stream, number = self._place(at)
        source = self._sources[stream]
        first = int(source.block_starts[number])
        return Reader(self._as_read[stream], source.shards[number], first, self._splits[stream])

    def fetch(self, at: int) -> None:
        """Have a shard on this machine: remote files are copied into the cache folder; raises what fetching raises."""
        source, number = self._source_of(at)
        store = source.folder.store
        if store.keeps_copies:
            for path, size_bytes, hashes in source.block_files(number):
                store.local_copy(path, size_bytes=size_bytes, hashes=hashes)

    def evict(self, at: int) -> None:
        """Close a shard, and remove its copies from the cache folder. A dataset's own files are never touched."""
        source, number = self._source_of(at)
        source.cache.drop(number)
        for path, copy in _copies(source, number):
            remove_copy(copy)
            source.folder.store.forget(path)

    def evict_coldest(self) -> bool:
        """Evict the shard with the least recently used copies; return False if no shard has copies."""
        used = {number: last for number in range(len(self)) if (last := self._last_use(number)) is not None}
        if used:
            self.evict(min(used, key=lambda number: used[number]))
        return bool(used)

    def resident_bytes(self) -> int:
        """Return the size in bytes of the shards on this machine: copies of remote files, and local files."""
        total = 0
        for number in range(len(self)):
            source, own = self._source_of(number)
            if source.folder.store.keeps_copies:
                total += sum(about_copy(copy)[1] for _, copy in _copies(source, own))
            else:
                total += sum(size_bytes for _, size_bytes, _ in source.block_files(own))
        return total

    def _last_use(self, at: int) -> float | None:
        source, number = self._source_of(at)
        return max((about_copy(copy)[0] for _, copy in _copies(source, number)), default=None)

    def _source_of(self, at: int) -> tuple[Any, int]:
        stream, number = self._place(at)
        return self._sources[stream], number

    def _place(self, at: int) -> tuple[int, int]:
        number = as_index(at, len(self))
        stream = int(np.searchsorted(self.offsets, number, side="right")) - 1
        return stream, number - int(self.offsets[stream])


def _copies(source: Any, number: int) -> list[tuple[str, str]]:
    """`(path in the store, path of its copy)` of a shard's files that were copied."""
    store = source.folder.store
    if not store.keeps_copies:
        return []
    found = [(path, store.copied_to(path)) for path, _, _ in source.block_files(number)]
    return [(path, copy) for path, copy in found if copy is not None]


def _info(file: ShardFile | None) -> FileInfo | None:
    return None if file is None else FileInfo(file.basename, file.size_bytes, dict(file.hashes))
